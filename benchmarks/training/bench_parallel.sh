#!/bin/bash
# The update on one and on two GPUs, and a run of 20 steps of the packaged model of which one rank is killed.
# bench_parallel.sh FOLDER [COMMIT]: writes FOLDER/parallel_cuda.csv and FOLDER/restart_cuda.csv.
# RANKS=4: on so many GPUs. NO_RESTART=1 and ONLY_RESTART=1: only one of the two.
set -u
cd "$(dirname "$0")/../.."
out=$1 commit=${2:-} ranks=${RANKS:-2}
mkdir -p "$out"
[ -n "${ONLY_RESTART:-}" ] || python3 benchmarks/training/bench_parallel.py --cases all --out "$out/parallel_cuda.csv" --commit "$commit"
[ -n "${ONLY_RESTART:-}" ] || torchrun --standalone --nproc-per-node "$ranks" benchmarks/training/bench_parallel.py --cases all \
  --out "$out/parallel_cuda.csv" --commit "$commit"
[ -n "${NO_RESTART:-}" ] && exit
run=$out/run
torchrun --standalone --nproc-per-node "$ranks" --max-restarts 1 --monitor-interval 0.2 -m kernel_coder.train \
  --model.name_or_path nano --model.device cuda --data.path packaged:pointwise --data.prompt_template nano \
  --rewards '[{"name": "format"}, {"name": "similarity"}]' --rollout.max_completion_length 256 \
  --optim.per_device_train_batch_size 8 --optim.gradient_accumulation_steps 6 --optim.learning_rate 3e-4 \
  --run.max_steps 20 --run.save_steps 1 --run.output_dir "$run" > "$out/restart.log" 2>&1 &
launcher=$!
until [ -e "$run/checkpoint-00000008" ] || ! kill -0 $launcher 2> /dev/null; do sleep 0.1; done
kill -9 "$(pgrep -P $launcher -f kernel_coder.train | tail -1)"
wait $launcher
echo "exit code $?" >> "$out/restart.log"
python3 - "$run/metrics.jsonl" "$out/restart_cuda.csv" <<'PY'
import csv, json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
names = ["step", "reward", "loss", "grad_norm", "entropy", "time/step_s", "time/gather_s", "time/rollout_s", "time/update_s"]
with open(sys.argv[2], "w", newline="") as file:
    writer = csv.writer(file)
    writer.writerow(names)
    writer.writerows([row.get(name, "") for name in names] for row in rows)
PY
tail -5 "$out/restart.log"
rm -rf "$run"
