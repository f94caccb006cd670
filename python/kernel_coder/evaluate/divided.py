"""A local model on every rank: each rank answers a part of the requests; rank 0 stores the answers and has them judged.

Rank 0 runs the evaluation with :class:`DividedModel` as its model. At the same time the other ranks run
:func:`help_first`. An answer's random numbers depend on its request, so the answers are those of one process up to
rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kernel_coder.evaluate.answers import Answer, AskedT, Model, Poll
from kernel_coder.evaluate.config import EvaluateConfig
from kernel_coder.evaluate.devices import resolve_device, resolve_dtype
from kernel_coder.evaluate.local import LocalModel
from kernel_coder.run import distributed

OPEN, CLOSE, END = "open", "close", "end"
"""Messages of rank 0 to the others: load the model, free it, the evaluation is over. A list holds requests to
answer."""


def on_this_rank(config: EvaluateConfig) -> EvaluateConfig:
    """Return the config with this rank's GPU as its device, if it names no other."""
    device = resolve_device(config.device)
    dtype = resolve_dtype(config.dtype, device)
    if device == "cuda":
        device = f"cuda:{distributed.world().local_rank}"
    return config.model_copy(update={"device": device, "dtype": dtype})


class DividedModel:
    """The model of rank 0; see :class:`kernel_coder.evaluate.answers.Model`."""

    def __init__(self, config: EvaluateConfig) -> None:
        tell(OPEN)
        self.size = config.batch_size
        self.model: Model = LocalModel(on_this_rank(config))

    def answer(self, requests: Sequence[AskedT], poll: Poll) -> Iterator[tuple[AskedT, Answer]]:
        done = 0
        while done < len(requests):  # polling may append further requests
            poll()  # only here: if it raised in the middle of a round, the other ranks would wait in vain
            part = list(requests[done : done + self.size * distributed.world().size])
            tell(part)
            for places in distributed.gathered(own_answers(self.model, part)):
                if isinstance(places, Exception):
                    raise places
                for place, answer in places:
                    yield part[place], answer
            done += len(part)

    def close(self) -> None:
        self.model.close()
        tell(CLOSE)


def own_answers(model: Model, part: Sequence[Any]) -> list[tuple[int, Answer]] | Exception:
    """Return this rank's answers with the indices of their requests, or the exception that was raised."""
    world = distributed.world()
    places = range(world.rank, len(part), world.size)
    of_request = {id(part[place]): place for place in places}
    try:
        found = model.answer([part[place] for place in places], lambda: None)
        return [(of_request[id(request)], answer) for request, answer in found]
    except Exception as error:
        return error


def tell(message: Any) -> None:
    """Sends a message to the other ranks. Only rank 0 calls this, while the others listen in :func:`help_first`."""
    distributed.from_first(lambda: message)


def help_first(config: EvaluateConfig) -> None:
    """Answers this rank's parts of the requests until rank 0 has finished. All ranks other than 0 call this."""
    model: Model | None = None
    while (message := distributed.from_first(lambda: None)) != END:
        if message == OPEN:
            model = LocalModel(on_this_rank(config))
        elif message == CLOSE:
            assert model is not None
            model.close()
            model = None
        else:
            assert model is not None
            part: Any = message  # mypy infers None, the argument of this rank
            distributed.gathered(own_answers(model, part))
