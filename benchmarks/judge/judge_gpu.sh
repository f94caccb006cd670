#!/usr/bin/env bash
# Runs the parts of the judge's acceptance that need a GPU, on the GPU that CUDA_VISIBLE_DEVICES names.
#
#   LEVELS="KernelBench/level1 KernelBench/level2" KERNELBENCH=KernelBench/src OUT=judge_gpu \
#       benchmarks/judge/judge_gpu.sh load tests rate spread thousand corpus await admission
#
#   step         what it does                                                             minutes on an H200
#   load         measures the load that other programs cause on the GPU; needs it alone   1
#   tests        runs the judge's tests that need a GPU; needs it alone                   2
#   rate         judges small kernels, also with KernelBench's evaluator; needs it alone  2
#   spread       judges one kernel thirty times, alone and beside others that compile     2
#   thousand     starts to judge 1,000 hostile and then 100 honest candidates, and does not wait
#   corpus       judges every candidate of the corpus; corpus:0/2 is one of two shards    10
#   await        waits until `thousand` has ended                                         15 to 20 after its start
#   admission    judges the reference of every task of LEVELS as a candidate              25
#
# Rows and logs go to OUT (judge_gpu). No step is started after FOR seconds (3600), and none lasts longer, so several
# runs can share the work: corpus and admission continue a run of the same commit, and `thousand` is started only once.
set -uo pipefail
cd "$(dirname "$0")/../.."
OUT=${OUT:-judge_gpu} PYTHON=${PYTHON:-python3} ENDS=$((SECONDS + ${FOR:-3600}))
THOUSAND=$(realpath -m "${THOUSAND:-$OUT/thousand.log}")  # elsewhere, where OUT does not outlast a part
export PYTHONUNBUFFERED=1 KC_REQUIRE_CUDA=1 KC_CORPUS=all
mkdir -p "$OUT"
status=0

left() { echo $((ENDS - SECONDS)); }

# step NAME SECONDS COMMAND...: runs the command for at most that long, with its output in OUT/NAME.log; prints the end.
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
