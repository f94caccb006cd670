#!/usr/bin/env bash
# Train and evaluate a model for KernelBench, in stages. Each ends within SECONDS_LIMIT seconds and continues when repeated:
#   configs/kernelbench-135m.sh STAGE...      stages: build check verify base lengths sft rl evaluate rejudge best, or all
# build, base and lengths need CPU cores only; the others need a GPU. The fourth run of docs/kernelbench.md was:
#   COUNT=72000 VERIFIER=none BASE="..." SFT_STEPS=2000 SEEDS=0 NPROC=4 configs/kernelbench-135m.sh build sft evaluate rejudge
#   COUNT             pairs of the supervised run (40000)
#   WORKERS           processes that build and read pairs, and candidates judged at once
#   NPROC             processes of sft, rl and evaluate, one for each GPU (1). With several, one task set after the other is
#                     evaluated on all GPUs
#   GPUS, TASKS       with NPROC=1: GPUs of evaluate and rejudge ("0"), each for one task set; and the task sets
#   SAMPLES           answers with each seed (1). A larger number later adds answers to an evaluation
#   STRICT            1: rejudge also with the strict judge
#   SFT_STEPS, RL_STEPS, SEEDS   updates of both trainings (3000 and 40), and seeds of the evaluation ("0 1 2")
#   SHARDS            parts of the pairs that are built at the same time
#   VERIFIER          of the stage build: solutions (the interpreter runs each distinct solution: hours of CPU time), or none
#                     (minutes; then `check` is the first time that a pair is run)
#   KERNELBENCH_DIR   copy of KernelBench's tasks, for the contamination check and the evaluation; never trained on
#   KERNELBENCH_SRC   KernelBench/src at commit 423217d, for the stage rejudge
#   BASE              empty: random weights and a tokenizer of its own; otherwise flags such as
#                     "--model.name_or_path DIR --model.gguf_file SmolLM2-135M-Instruct.Q4_1.gguf"
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python}
COUNT=${COUNT:-40000}
WORKERS=${WORKERS:-2}
SHARDS=${SHARDS:-1}
VERIFIER=${VERIFIER:-solutions}
SECONDS_LIMIT=${SECONDS_LIMIT:-540}
NPROC=${NPROC:-1}
SFT_STEPS=${SFT_STEPS:-3000}
RL_STEPS=${RL_STEPS:-40}
SEEDS=${SEEDS:-0 1 2}
GPUS=${GPUS:-0}
SAMPLES=${SAMPLES:-1}
KERNELBENCH_DIR=${KERNELBENCH_DIR:-../shared/data/kernelbench}
BASE=${BASE:-}
D=data
R=runs/kernelbench-135m
NAME=$D/kernelbench-135m
TASKS=${TASKS:-kernelbench:level1 kernelbench:level2 $NAME-compositions.parquet $NAME-operations.parquet $NAME-families.parquet}

pairs() {  # FILE COUNT SEED LEVELS SPLIT
  [ -e "$1" ] || $PYTHON -m kernel_coder.data build --families repository --out "$1" --count "$2" --seed "$3" --levels $4 \
    --splits "$5" --against "$KERNELBENCH_DIR" --per-structure "${PER_STRUCTURE:-40}" --verifier "$VERIFIER" --workers "$WORKERS" \
    --timeout 120
}
newest() { ls -d "$1"/checkpoint-* | sort -V | tail -1; }
join() {  # OUT FILES...
  $PYTHON - "$@" <<'END'
import sys
from pyarrow import concat_tables, parquet
table = concat_tables(map(parquet.read_table, sys.argv[2:]))
first = {}
for at, uuid in enumerate(table["uuid"].to_pylist()):
    first.setdefault(uuid, at)
parquet.write_table(table.take(sorted(first.values())), sys.argv[1], compression="zstd")
END
}

build() {
  mkdir -p $D/shards
  for shard in $(seq 1 "$SHARDS"); do
    pairs "$D/shards/$shard.parquet" $((COUNT / SHARDS)) $((100 + shard)) "1 1 2 2 3 3" train &
  done
  wait
  [ -e $NAME.parquet ] || join $NAME.parquet $D/shards/*.parquet
  pairs $NAME-rl.parquet $((COUNT / 20)) 300 "2 3 3" train
  [ -e $NAME-rl-small.parquet ] || $PYTHON benchmarks/training/kernelbench/small_inputs.py $NAME-rl.parquet \
    --elements 4194304 --out $NAME-rl-small.parquet
  pairs $NAME-compositions.parquet $((COUNT / 200)) 400 "2 3" heldout_composition
  pairs $NAME-operations.parquet $((COUNT / 200)) 500 "1 1 2" heldout_operation
  pairs $NAME-families.parquet 40 600 "1" heldout_family  # few modules of these families differ enough
  [ -e $NAME-heldout.parquet ] || join $NAME-heldout.parquet $NAME-compositions.parquet $NAME-operations.parquet
}
check() {
  $PYTHON benchmarks/training/kernelbench/check_small.py $NAME.parquet --out $NAME-checked.parquet --processes "$WORKERS"
}
verify() {
  $PYTHON benchmarks/training/kernelbench/verify.py $NAME-checked.parquet --out $NAME-gpu.parquet --workers "$WORKERS" \
    --seconds "$SECONDS_LIMIT"
}
base() {
  [ -n "$BASE" ] && return
  [ -e $R/tokenizer ] || $PYTHON -m kernel_coder.models.nano tokenizer $NAME-rl.parquet $NAME-heldout.parquet \
    --vocab-size 4096 --output $R/tokenizer
  $PYTHON -m kernel_coder.models.nano init --tokenizer $R/tokenizer --output $R/base --config '{"hidden_size": 576,
    "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
    "max_position_embeddings": 4096, "rope_theta": 100000.0, "rms_norm_eps": 1e-05}'
}
lengths() { $PYTHON benchmarks/training/kernelbench/lengths.py $NAME-rl.parquet --tokenizer $R/tokenizer; }
sft() {
  local resume=() data=$NAME.parquet
  [ -e $R/sft/metrics.jsonl ] && resume=(--resume)
  for made in $NAME-checked.parquet $NAME-gpu.parquet; do [ -e $made ] && data=$made; done
  timeout --signal TERM "$SECONDS_LIMIT" $PYTHON -m kernel_coder.sft --nproc "$NPROC" --config configs/kernelbench-135m-sft.yaml $BASE \
    --parallel.shard false --optim.per_device_train_batch_size $((16 / NPROC)) --optim.gradient_accumulation_steps "$NPROC" \
    --data.path "$data" --data.num_proc "$WORKERS" --run.max_steps "$SFT_STEPS" "${resume[@]}" || [ $? -eq 124 ]
}
rl() {
  local resume=()
  [ -e $R/rl/metrics.jsonl ] && resume=(--resume)
  timeout --signal TERM "$SECONDS_LIMIT" $PYTHON -m kernel_coder.train --nproc "$NPROC" --config configs/kernelbench-135m-rl.yaml \
    --model.name_or_path "$(newest $R/sft)" --run.max_steps "$RL_STEPS" "${resume[@]}" || [ $? -eq 124 ]
}
all_gpus() { seq -s, 0 $((NPROC - 1)); }
on_each_gpu() {  # FUNCTION ITEMS...: items in turn, as many at a time as there are GPUs
  local function=$1 gpus=($GPUS) at=0
  shift
  [ "$NPROC" -eq 1 ] || gpus=("$(all_gpus)")
  for item in "$@"; do
    CUDA_VISIBLE_DEVICES=${gpus[at % ${#gpus[@]}]} "$function" "$item" &
    at=$((at + 1))
    [ $((at % ${#gpus[@]})) -ne 0 ] || wait
  done
  wait
}
evaluate_on() {  # TASKS: answers and verdicts of the newest model
  local out=$R/evaluations/$MODEL-$(basename "${1/:/-}" .parquet) several=()
  [ "$NPROC" -eq 1 ] || several=(--nproc "$NPROC" --judge-device "$(all_gpus | sed 's/[0-9]*/cuda:&/g')")
  timeout --signal TERM "$SECONDS_LIMIT" $PYTHON -m kernel_coder.evaluate "${several[@]}" --model "$(newest $R/$MODEL)" --tasks "$1" \
    --kernelbench-dir "$KERNELBENCH_DIR" --prompt-template bare --temperature 1.0 --top-p 0.97 --samples "$SAMPLES" --seeds $SEEDS \
    --max-new-tokens 3072 --batch-size 128 --remember --output "$out" $([ -e "$out/samples.jsonl" ] && echo --resume) \
    --judge.allow library_matmul --judge.families own,normal --judge.hidden-shapes false --judge.null-candidates false --judge.profile false \
    --judge.checks 3 --judge.timed-calls 20 --judge.timing-s 1.0 --judge.timeout-s 60 --judge.workers 4 || [ $? -eq 124 ]
}
evaluate() {
  for MODEL in sft rl; do
    [ -e $R/$MODEL ] || continue
    on_each_gpu evaluate_on $TASKS
  done
}
rejudge_on() {  # TASKS: KernelBench's evaluator, and with STRICT=1 our strict judge
  local level=${1#kernelbench:}
  $PYTHON benchmarks/training/kernelbench/rejudge.py "$(ls -d $R/evaluations/{rl,sft}-kernelbench-"$level" 2>/dev/null | head -1)" \
    --tasks "$1" --kernelbench-dir "$KERNELBENCH_DIR" --gpus "$(all_gpus)" --seconds "$SECONDS_LIMIT" --processes 3 $([ -n "${STRICT:-}" ] || echo --no-strict) \
    ${KERNELBENCH_SRC:+--kernelbench-src "$KERNELBENCH_SRC"} || [ $? -eq 75 ]
}
rejudge() { on_each_gpu rejudge_on kernelbench:level1 kernelbench:level2; }
best() {
  $PYTHON benchmarks/judge/remeasure.py "$(ls -d $R/evaluations/{rl,sft}-kernelbench-level1 2>/dev/null | head -1)" --out $R/remeasured.csv
}

[ $# -gt 0 ] || { sed -n '2,/^set /{/^#/p}' "$0"; exit 2; }
[ $((16 % NPROC)) -eq 0 ] || { echo "NPROC must be 1, 2, 4, 8 or 16, since an update has 16 sequences; got $NPROC" >&2; exit 2; }
[ "$1" = all ] && set -- build check verify base lengths sft rl evaluate rejudge best
for stage in "$@"; do
  echo "== $stage"
  "$stage"
done
