#!/usr/bin/env bash
# kernel-coder-nano from nothing: pairs, the corpus of right and wrong answers, tokenizer, random weights, warm-up, and what is
# shipped, in runs/kernel-coder-nano. The same on a CPU (hours) and on a GPU (minutes); WORKERS=16 for the first two steps, and flags
# are handed to the warm-up: WORKERS=16 configs/nano.sh --run.max_steps 3000
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python}
WORKERS=${WORKERS:-2}
$PYTHON -m kernel_coder.data build --out data/nano.parquet --count 16000 --seed 0 --per-structure 3 --levels 0 1 \
  --families elementwise activation broadcast residual --workers "$WORKERS"
$PYTHON -m kernel_coder.data mix data/nano.parquet --out data/nano-mix.parquet --wrong 0.45 --talks 0.06 --workers "$WORKERS"
$PYTHON -m kernel_coder.models.nano tokenizer data/nano-mix.parquet --output runs/nano-tokenizer
$PYTHON -m kernel_coder.models.nano init --tokenizer runs/nano-tokenizer --output runs/nano-init
$PYTHON -m kernel_coder.sft --config configs/nano-sft.yaml "$@"
$PYTHON -m kernel_coder.models.nano export "$(ls -d runs/nano-sft/checkpoint-* | tail -1)" --output runs/kernel-coder-nano
