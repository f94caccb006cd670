#!/usr/bin/env bash
# What the judge's acceptance asks of a GPU, step by step, on the one that CUDA_VISIBLE_DEVICES names.
#
#   LEVELS="KernelBench/level1 KernelBench/level2" KERNELBENCH=KernelBench/src OUT=judge_gpu \
#       benchmarks/judge/judge_gpu.sh load tests rate spread thousand corpus await admission
#
#   load         what others' work on the GPU looks like to who shares it, to itself       1 minute on an H200
#   tests        the judge's tests that need a GPU, to itself                             2
#   rate         small kernels, beside KernelBench's evaluator, to itself                 2
#   spread       one kernel thirty times, alone and beside others that compile            2
#   thousand     1,000 hostile candidates, then 100 honest ones; begins, and goes on by itself
#   corpus       every candidate; corpus:0/2 is one of two shards                         10
#   await        the thousand's end                                                       15 to 20 since it began
#   admission    every task of LEVELS, its reference as the candidate                     25
#
# Rows and logs go to OUT (judge_gpu). A machine may be asked in parts: nothing is begun after FOR seconds (3600), and no
# step lasts longer; corpus and admission go on where a run of the same commit ended, and the thousand if it still runs.
set -uo pipefail
cd "$(dirname "$0")/../.."
OUT=${OUT:-judge_gpu} PYTHON=${PYTHON:-python3} ENDS=$((SECONDS + ${FOR:-3600}))
THOUSAND=$(realpath -m "${THOUSAND:-$OUT/thousand.log}")  # elsewhere, where OUT does not outlast a part
export PYTHONUNBUFFERED=1 KC_REQUIRE_CUDA=1 KC_CORPUS=all
mkdir -p "$OUT"
status=0

left() { echo $((ENDS - SECONDS)); }

# NAME SECONDS COMMAND...: its output into OUT/NAME.log, its last lines here; no longer than that.
step() {
  local name=$1 most=$2 began=$SECONDS code=0
  shift 2
  timeout -s INT -k 10 "$(($(left) < most ? $(left) : most))" "$@" >"$OUT/$name.log" 2>&1 || code=$?
  echo "== $name: exit $code after $((SECONDS - began)) s"
  tail -n 12 "$OUT/$name.log"
  [[ $code == 0 ]] || status=1
}

thousand() {
  [[ -e $THOUSAND.pid ]] && return
  # shellcheck disable=SC2016
  setsid bash -c 'echo $$ >"$1.pid"; "$2" -m pytest -q -rA tests/judge/test_corpus.py -k thousand >"$1" 2>&1; echo "exit $? after $SECONDS s" >>"$1"' \
    _ "$THOUSAND" "$PYTHON" </dev/null >/dev/null 2>&1 &
}

await() {
  while [[ $(left) -gt 1 ]] && ! tail -n 1 "$THOUSAND" | grep -q '^exit '; do sleep 1; done
  echo "== thousand: $(tail -n 1 "$THOUSAND")"
  cp -n "$THOUSAND" "$OUT/thousand.log" 2>/dev/null
  grep -q '^exit 0 ' <(tail -n 1 "$THOUSAND") || status=1
}

for each in "$@"; do
  if [[ $(left) -le 1 ]]; then
    echo "== $each: not begun"
    status=1
    continue
  fi
  case $each in
    load)
      step load 180 "$PYTHON" benchmarks/judge/bench_load.py --raw "$OUT/load.jsonl"
      cp benchmarks/results/judge_load_cuda.csv "$OUT/"
      ;;
    tests) step tests 600 "$PYTHON" -m pytest -q -rA --durations=15 -m gpu tests/judge ;;
    rate)
      step rate 300 "$PYTHON" benchmarks/judge/bench_judge.py ${KERNELBENCH:+--kernelbench "$KERNELBENCH"} --count 12 --many 96
      cp benchmarks/results/judge_rate_cuda.csv "$OUT/"
      ;;
    spread)
      step spread 300 "$PYTHON" benchmarks/judge/bench_judge.py --spread 30
      cp benchmarks/results/judge_spread_cuda.csv "$OUT/"
      ;;
    thousand) thousand ;;
    await) await ;;
    corpus | corpus:*)
      shard=${each#corpus} shard=${shard#:}
      step "corpus${shard%/*}" "$(left)" "$PYTHON" benchmarks/judge/judge_corpus.py --beside 3 --shard "${shard:-0/1}" \
        --seconds $(($(left) > 120 ? $(left) - 90 : 30)) --out "$OUT/corpus${shard%/*}.csv"
      ;;
    admission)
      # shellcheck disable=SC2086
      step admission "$(left)" "$PYTHON" benchmarks/judge/bench_admission.py ${LEVELS:?} --claims "$OUT/claims" --times "$OUT/times.jsonl" \
        --seconds $(($(left) > 120 ? $(left) - 60 : 30)) --out "$OUT/admission.csv"
      ;;
    *)
      echo "no such step: $each" >&2
      exit 2
      ;;
  esac
done
exit $status
