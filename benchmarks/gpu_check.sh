#!/usr/bin/env bash
# On any CUDA machine with torch >= 2.9 and Python 3.11+: the methods on the GPU against the CPU, gradient steps per
# second, and one timed Table 2 cell, in under six minutes. Writes one JSON, gpu_check.json in the folder given (or
# benchmarks/results). Nothing needs to be installed beside torch, numpy, pandas, scikit-learn, scipy, threadpoolctl.
set -euo pipefail
cd "$(dirname "$0")/.."
test -x .venv/bin/python && PYTHON="${PYTHON:-.venv/bin/python}"
PYTHONPATH="src:benchmarks${PYTHONPATH:+:$PYTHONPATH}" exec "${PYTHON:-python3}" benchmarks/gpu_check.py "$@"
