#!/usr/bin/env bash
# Set up DeepInfer for this checkout; with a verb, go on to run or test it.
#
#   ./build.sh [--no-device]            set up
#   ./build.sh [--no-device] run ...    set up, then run the main job: python run.py ...
#   ./build.sh [--no-device] test ...   set up, then everything that CI checks; ... goes to pytest
#
# Uses the active virtual environment, else .venv beside this file, which it makes if need be. May be
# run again at any time; with everything installed already it needs no network: the build backend
# lives in the environment (--no-build-isolation), so pip has nothing to look up. `test` goes on in
# .venv-3.12 with what a Python 3.12 can check, where there is one (.ci/with-python).
#
# DEEPINFER_ACCELERATOR names the accelerator to set up for (default: reference, part of the core).
# The device of any other one must be here, unless --no-device says to install and to compile ahead
# of time without it. DEEPINFER_GOLDEN_DIR names golden data for `test` (default: the part of them
# in tests/golden). PYTHON is the interpreter that makes .venv (default: python3).
#
# Exit status: 0; 2 for a wrong argument; 3 when something is missing here; else that of the step.
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
needs_python="3.11"

say() { printf 'build.sh: %s\n' "$*"; }
fail() { # STATUS MESSAGE...
    local status=$1
    shift
    printf 'build.sh: error: %s\n' "$@" >&2
    exit "$status"
}

# --- arguments ---------------------------------------------------------------------------------

usage() { sed -n '2,/^set -/{/^set -/d;s/^# \{0,1\}//;p;}' "${BASH_SOURCE[0]}"; }

no_device=""
verb=""
while [ $# -gt 0 ]; do
    case $1 in
        --no-device) no_device=yes ;;
        --help | -h) usage && exit 0 ;;
        run | test) verb=$1 && shift && break ;;
        *) fail 2 "unknown argument '$1'; allowed: --no-device, run, test (--help explains)" ;;
    esac
    shift
done

# --- interpreter -------------------------------------------------------------------------------

# What pip and Python see must be the environment and nothing else.
if [ -n "${PYTHONPATH:-}${PYTHONHOME:-}" ]; then
    say "ignoring PYTHONPATH and PYTHONHOME: they could stand in for what is not installed"
    unset PYTHONPATH PYTHONHOME
fi
export PYTHONNOUSERSITE=1
# An installed vendor extension of torch must not break `import torch` (see deepinfer_launcher.py).
export TORCH_DEVICE_BACKEND_AUTOLOAD="${TORCH_DEVICE_BACKEND_AUTOLOAD:-0}"

works() { "$1" -c "import sys; sys.exit(sys.version_info < tuple(map(int, '$needs_python'.split('.'))))" 2>/dev/null; }

if [ -n "${VIRTUAL_ENV:-}" ]; then
    environment=$VIRTUAL_ENV
    say "using the active virtual environment $environment"
else
    environment=$root/.venv
    if [ -x "$environment/bin/python" ]; then
        say "using $environment"
    else
        maker=${PYTHON:-python3}
        command -v "$maker" >/dev/null || fail 3 "no interpreter '$maker'; set PYTHON to a Python >= $needs_python"
        works "$maker" || fail 3 "'$maker' is $("$maker" --version 2>&1), but Python >= $needs_python is needed; set PYTHON to one"
        say "making the virtual environment $environment with $("$maker" --version 2>&1)"
        "$maker" -m venv "$environment" || fail 3 \
            "could not make $environment (on Debian: apt-get install python3-venv)"
    fi
    export VIRTUAL_ENV=$environment
fi
python=$environment/bin/python
works "$python" || fail 3 "$python is not a working Python >= $needs_python; remove $environment or activate another"
export PATH=$environment/bin:$PATH

pip() { "$python" -m pip --disable-pip-version-check "$@"; }
pip --version >/dev/null 2>&1 || "$python" -m ensurepip >/dev/null 2>&1 || true
pip --version >/dev/null 2>&1 || fail 3 "$environment has no pip and ensurepip cannot install it"

# --- the contested package ---------------------------------------------------------------------

"$python" -I "$root/deepinfer_launcher.py" --vendor || fail 3 \
    "the import package \`deepinfer\` belongs to another distribution in $environment (see above)"

# --- accelerator: is it one that can be set up? -------------------------------------------------

accelerator=${DEEPINFER_ACCELERATOR:-reference}
backend=$root/backends/$accelerator # the folder of a first-party backend

known_accelerators() {
    for folder in "$root"/backends/*/; do
        folder=${folder%/}
        printf '%s\n' "${folder##*/}"
    done
    "$python" -I -c '
from importlib.metadata import entry_points
for entry in entry_points(group="deepinfer.backends"):
    print(entry.name)'
}
names=$(known_accelerators | sort -u)
grep -qxF -- "$accelerator" <<<"$names" || fail 2 \
    "DEEPINFER_ACCELERATOR='$accelerator' is neither a backend of this checkout nor installed;" \
    "allowed: $(paste -sd, - <<<"$names" | sed 's/,/, /g'); a third party's: install its distribution first"

# --- the core ----------------------------------------------------------------------------------

install() { # WHAT PIP_ARGUMENTS...
    local what=$1
    shift
    pip install "$@" || fail 3 "could not install $what: pip's reason is above"
}

torch=$("$python" -I -c '
import sys, tomllib
with open(sys.argv[1], "rb") as file:
    dependencies = tomllib.load(file)["project"]["dependencies"]
print(next(text for text in dependencies if text.startswith("torch==")))' "$root/pyproject.toml")
if found=$("$python" -I -c '
import sys, torch
print(torch.__version__)
sys.exit(torch.__version__.split("+")[0] != sys.argv[1])' "${torch#torch==}" 2>/dev/null); then
    say "reusing torch $found"
else
    say "installing $torch (found: ${found:-none that can be imported})"
    install "$torch" "$torch"
fi

if "$python" -I -c 'import setuptools, sys; sys.exit(int(setuptools.__version__.split(".")[0]) < 77)' 2>/dev/null; then
    say "reusing setuptools"
else
    say "installing setuptools, the build backend"
    install setuptools --quiet --upgrade "setuptools>=77"
fi

extra=""
[ "$verb" = test ] && extra="[dev]"
say "installing deepinfer-core$extra from $root (editable)"
install "deepinfer-core from $root" --quiet --no-build-isolation --editable "$root$extra"
"$python" -I "$root/deepinfer_launcher.py" || fail 3 "deepinfer-core does not work as installed (see above)"

# --- the accelerator's distribution ------------------------------------------------------------

probe() { # prints what is missing; status 3 if the accelerator is not usable here
    "$python" -I - "$accelerator" "$backend" <<'PYTHON'
import importlib
import sys
from importlib.metadata import entry_points

import pluggy

from deepinfer.backend import hooks

name, folder = sys.argv[1:]
entries = entry_points(group=hooks.ENTRY_POINT_GROUP, name=name)
sys.path.append(folder)  # a first-party backend is asked before it is installed
module = next(iter(entries)).value if entries else f"deepinfer_{name}.plugin"
manager = pluggy.PluginManager(hooks.PROJECT)
manager.add_hookspecs(hooks.HookSpecification)
manager.register(importlib.import_module(module))
availability = manager.hook.deepinfer_probe(mode=None)
if not availability.usable:
    print(*(f"  - {reason}" for reason in availability.reasons), sep="\n", file=sys.stderr)
    print(f"  {availability.remedy}", file=sys.stderr)
sys.exit(0 if availability.usable else 3)
PYTHON
}

if [ "$accelerator" != reference ]; then
    if probe; then
        say "accelerator $accelerator: usable here"
    elif [ $? -ne 3 ]; then
        fail 1 "the probe of accelerator $accelerator failed (see above)"
    elif [ -z "$no_device" ]; then
        fail 3 "accelerator $accelerator is not usable here, for the reasons above;" \
            "--no-device installs and compiles ahead of time all the same," \
            "DEEPINFER_ACCELERATOR=reference runs without any device"
    else
        say "accelerator $accelerator: not usable here (above); going on because of --no-device"
    fi
    if [ -f "$backend/pyproject.toml" ]; then
        say "installing deepinfer-$accelerator from $backend (editable)"
        install "deepinfer-$accelerator from $backend" --quiet --no-build-isolation --no-deps --editable "$backend"
    fi
    # A backend that compiles something brings compile.sh, which checks the tools that its own steps
    # use (a compiler, a toolkit and their versions) and says which one is missing.
    if [ -f "$backend/compile.sh" ]; then
        say "compiling ahead of time for $accelerator"
        PYTHON=$python bash "$backend/compile.sh" ${no_device:+--no-device} ||
            fail 3 "the ahead-of-time compilation of $accelerator failed (see above)"
    fi
fi
say "set up for accelerator $accelerator in $environment (source $(printf %q "$environment")/bin/activate)"

# --- verbs -------------------------------------------------------------------------------------

failed=()
stage() { # NAME COMMAND...
    local name=$1 start=$SECONDS status=0
    shift
    printf '\n=== %s\n' "$name"
    "$@" || status=$?
    printf '=== %s: %s after %d s\n' "$name" "$([ $status -eq 0 ] && echo passed || echo "failed with status $status")" $((SECONDS - start))
    [ $status -eq 0 ] || failed+=("$name")
}

# One process per core, four at most: each loads models of its own.
test_processes() {
    local cores
    cores=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
    echo $((cores < 4 ? cores : 4))
}

golden() {
    deepinfer golden "${DEEPINFER_GOLDEN_DIR:-tests/golden}" --accelerator reference
}

# The example of a plugin, installed beside the environment, which stays as it is.
compiled_plugin() {
    local site status=0
    if ! command -v "${CXX:-g++}" >/dev/null; then
        say "skipped: plugins/compiled needs a C++ compiler (${CXX:-g++})"
        return
    fi
    site=$(mktemp -d)
    cp -R plugins/compiled "$site/source" &&
        pip install --quiet --no-index --no-deps --no-build-isolation --target "$site/packages" "$site/source" &&
        PYTHONPATH=$site/packages pytest --quiet "$site/source/tests/test_plugin.py" &&
        PYTHONPATH=$site/packages deepinfer conformance --accelerator compiled --profile full --workers 2 || status=$?
    rm -rf -- "$site"
    return $status
}

# Another version of Python, unless the environment has it and everything above ran with it.
other_python() { # VERSION
    if "$python" -I -c 'import sys; sys.exit("%d.%d" % sys.version_info[:2] != sys.argv[1])' "$1"; then
        say "left out: this environment is Python $1, all stages ran with it"
    else
        .ci/with-python "$1"
    fi
}

case $verb in
    run)
        cd -- "$root"
        exec "$python" run.py "$@"
        ;;
    test)
        cd -- "$root"
        stage "ruff check" ruff check .
        stage "ruff format" ruff format --check .
        stage "mypy" mypy
        stage "pytest" env OMP_NUM_THREADS=1 pytest --numprocesses "$(test_processes)" --dist loadfile --durations=15 "$@"
        stage "golden" golden
        stage "conformance of the reference" deepinfer conformance --accelerator reference --workers 2
        stage "conformance of plugins/compiled" compiled_plugin
        stage "run.py" env DEEPINFER_ACCELERATOR=reference "$python" run.py
        stage "examples/offline_inference.py" env DEEPINFER_ACCELERATOR=reference "$python" examples/offline_inference.py
        stage "examples/streaming.py" env DEEPINFER_ACCELERATOR=reference "$python" examples/streaming.py
        stage "Python 3.12" other_python 3.12
        echo
        [ ${#failed[@]} -eq 0 ] || fail 1 "failed: $(printf '%s; ' "${failed[@]}")all else passed (total $SECONDS s)"
        say "all stages passed in $SECONDS s"
        ;;
esac
