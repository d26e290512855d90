#!/usr/bin/env bash
# Run what needs a GPU, on any machine that has one: tests, roofs, sweeps, counters. Internet and installed perfkit are
# not needed.
#
#   scripts/gpu.sh [--out DIR] [--wheels DIR] [--tests] [--roofs] [--use-roofs] [--sweep "MODEL [FLAG…]"]…
#                  [--profile "MODEL [FLAG…]"]… [--quick]
#
#   --out DIR       where results go, new or existing (default: runs/gpu-<UTC time>)
#   --wheels DIR    wheels of packages that Python lacks here; unpacked into a temporary folder, nothing is installed
#   --tests         every test marked `gpu`
#   --roofs         measure this GPU's roofs twice into DIR/<gpu>-roofs.yaml; 2 % between the two are a failure
#   --use-roofs     the same, and let the sweeps after it go by them
#   --sweep …       perfkit sweep --model MODEL FLAG… into DIR/<model>, and all of that folder in DIR/<model>.tar.gz
#   --profile …     perfkit profile --model MODEL FLAG… into DIR/<model>-counters, packed likewise; after the sweeps, whose
#                   tuned launch configurations it uses
#   --quick         fewer points: three sizes for roofs, the preset `quick` for sweeps
#
# Python is $PYTHON, else .venv's, else python3; it needs torch and triton. A part that fails does not stop the others;
# a table comes last, all output is in DIR/gpu.log too; the exit code is 1 if there is no GPU or any part failed, 2 for
# bad usage.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
usage() { sed -n 's/^#   //p' "${BASH_SOURCE[0]}" >&2; }
bad() { echo "gpu.sh: $*" >&2; usage; exit 2; }

out='' wheels='' tests='' roofs='' use='' quick=''
sweeps=() profiles=()
while [ $# -gt 0 ]; do
    case $1 in
        --out | --wheels | --sweep | --profile)
            [ $# -ge 2 ] && [ -n "$2" ] || bad "$1 needs a value"
            case $1 in --out) out=$2 ;; --wheels) wheels=$2 ;; --sweep) sweeps+=("$2") ;; --profile) profiles+=("$2") ;; esac
            shift ;;
        --tests) tests=1 ;;
        --roofs) roofs=1 ;;
        --use-roofs) roofs=1 use=1 ;;
        --quick) quick=1 ;;
        -h | --help) usage; exit 0 ;;
        *) bad "unknown argument: $1" ;;
    esac
    shift
done
[ -n "$tests$roofs" ] || [ $((${#sweeps[@]} + ${#profiles[@]})) -gt 0 ] ||
    bad "nothing to do: --tests, --roofs, --sweep or --profile"
out=${out:-$root/runs/gpu-$(date -u +%Y%m%dT%H%M%SZ)}
mkdir -p "$out" && out=$(cd "$out" && pwd) && : >>"$out/gpu.log" || bad "--out cannot be written"

if [ -n "$wheels" ]; then
    ls "$wheels"/*.whl >/dev/null 2>&1 || bad "--wheels: no wheel in $wheels"
    wheels=$(cd "$wheels" && pwd)
fi
cd "$root" || exit 2
if [ -z "${PYTHON:-}" ]; then
    PYTHON=python3
    [ -x .venv/bin/python ] && PYTHON=$root/.venv/bin/python
fi
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
trap 'exit 130' INT
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
unset TRITON_INTERPRET
if [ -n "$wheels" ]; then
    for wheel in "$wheels"/*.whl; do # one by one: a wheel for another Python does not keep the others out
        "$PYTHON" -m pip install -q --disable-pip-version-check --no-index --no-deps --no-compile --no-cache-dir \
            --target "$site" --upgrade "$wheel" 2>&1 | tee -a "$out/gpu.log"
    done
    export PYTHONPATH=$PYTHONPATH:$site
fi

table=() failed=0
part() { # part NAME COMMAND…: run, log, remember; never fails
    local name=$1 started=$SECONDS code
    shift
    printf '\n== %s\n' "$name" | tee -a "$out/gpu.log"
    "$@" 2>&1 | tee -a "$out/gpu.log"
    code=${PIPESTATUS[0]}
    [ "$code" = 0 ] || failed=1
    table+=("$(printf '%-32s %-10s %5d s' "$name" "$([ "$code" = 0 ] && echo ok || echo "exit $code")" $((SECONDS - started)))")
    return "$code"
}

part gpu "$PYTHON" -c 'from perfkit import device, errors
try:
    gpu = device.visible_gpu()
except errors.PerfkitError as error:
    raise SystemExit(f"perfkit: {error}")
print(gpu.name, gpu.uuid, "driver", gpu.driver)' || exit 1

# Options of pyproject.toml that need a plug-in would be errors where pytest-timeout or -xdist is missing.
[ -z "$tests" ] || PERFKIT_GPU_TESTS=1 part tests "$PYTHON" -m pytest -q -p no:cacheprovider -m gpu \
    -o addopts='--import-mode=importlib -ra' tests
if [ -n "$roofs" ]; then # two runs: the second shows that the first can be trusted
    how=(--repeat 2)
    [ -z "$quick" ] || how=(--quick)
    part roofs "$PYTHON" -m perfkit roofline --out "$out" "${how[@]}"
    [ -z "$use" ] || export PERFKIT_ROOFS=$out
fi
model_part() { # model_part COMMAND SUFFIX "MODEL FLAG…" [FLAG…]: into a folder of the model's name and SUFFIX, packed
    local -a words
    read -ra words <<<"$3"
    local name folder n=1
    name=$(basename "${words[0]}" .json | tr -c 'A-Za-z0-9._\n-' -)$2
    folder=$out/$name
    while [ -e "$folder" ]; do n=$((n + 1)) folder=$out/$name-$n; done
    part "$1 ${folder##*/}" "$PYTHON" -m perfkit "$1" --model "${words[@]}" "${@:4}" --out "$folder"
    [ ! -d "$folder" ] || tar -C "$out" -czf "$folder.tar.gz" "${folder##*/}" || failed=1
}

for sweep in ${sweeps[@]+"${sweeps[@]}"}; do model_part sweep '' "$sweep" ${quick:+--preset quick}; done
for profile in ${profiles[@]+"${profiles[@]}"}; do model_part profile -counters "$profile"; done

{ echo; printf '%s\n' "${table[@]}"; echo "results in $out"; } | tee -a "$out/gpu.log"
exit "$failed"
