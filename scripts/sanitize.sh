#!/usr/bin/env bash
# Builds the image kernel with AddressSanitizer and UndefinedBehaviorSanitizer and feeds it mutated JPEGs.
#   scripts/sanitize.sh [ROUNDS]     mutations of each seed file; 1500 (about 30 s) by default
set -euo pipefail
cd "$(dirname "$0")/.."
rounds="${1:-1500}"
python="${PYTHON:-.venv/bin/python}"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

flags=(-std=c++17 -O1 -g -ffp-contract=off -fno-omit-frame-pointer -Wall -Wextra
  -Wno-uninitialized -Wno-maybe-uninitialized # of GCC's own AVX-512 header, without optimisation
  -fsanitize=address,undefined -fno-sanitize-recover=all)
objects=()
compile() { # compile FILE FLAGS...
  local source="$1"; shift
  "${CXX:-c++}" "${flags[@]}" "$@" -c "native/$source.cpp" -o "$work/$source.o"
  objects+=("$work/$source.o")
}
define=()
if [ "$(uname -m)" = x86_64 ]; then
  define=(-DSHARDMILL_X86)
  compile kernels_avx2 "${define[@]}" -mavx2 -mbmi2 -mf16c
  compile kernels_avx512 "${define[@]}" -mavx2 -mbmi2 -mf16c -mavx512f -mavx512bw -mavx512vl -mavx512dq
fi
for source in baseline huffman jpeg jpeg_header kernels kernels_portable resample fuzz_driver; do compile "$source" "${define[@]}"; done
"${CXX:-c++}" "${flags[@]}" "${objects[@]}" -ljpeg -o "$work/fuzz_driver"

"$python" - "$work" <<'SEEDS'
"""One small JPEG of each kind: the mutations start from these."""
import sys
from pathlib import Path

import numpy as np
from PIL import Image

folder = Path(sys.argv[1])
rng = np.random.default_rng(0)
small = rng.integers(0, 256, (7, 9, 3), dtype=np.uint8)
picture = Image.fromarray(small).resize((150, 110), Image.Resampling.BICUBIC)
kinds = {
    "444": ("RGB", {"subsampling": "4:4:4"}),
    "422": ("RGB", {"subsampling": "4:2:2", "quality": 90}),
    "420": ("RGB", {"subsampling": "4:2:0"}),
    "restart": ("RGB", {"subsampling": "4:2:0", "restart_marker_blocks": 5}),
    "progressive": ("RGB", {"progressive": True}),
    "progressive_restart": ("RGB", {"progressive": True, "subsampling": "4:4:4", "restart_marker_rows": 1}),
    "rgb": ("RGB", {"keep_rgb": True}),
    "gray": ("L", {}),
    "cmyk": ("CMYK", {}),
}
for name, (mode, options) in kinds.items():
    picture.convert(mode).save(folder / f"{name}.jpg", **options)
picture.resize((900, 700)).save(folder / "large.jpg", quality=40)
SEEDS

"$work/fuzz_driver" "$rounds" "$work"/*.jpg
echo "no sanitizer report"
