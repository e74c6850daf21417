#!/usr/bin/env bash
# The native module needs a C++ compiler and the header of libjpeg-turbo. Installs them where we may, else says how.
set -eu
if command -v c++ >/dev/null && echo '#include <cstdio>
#include <jpeglib.h>' | c++ -x c++ -E - >/dev/null 2>&1; then
  exit 0
fi
if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq g++ libjpeg-dev
else
  echo "shardmill: no C++ compiler or no jpeglib.h, so images will be decoded by Pillow, about half as fast." >&2
  echo "           Debian/Ubuntu: sudo apt-get install g++ libjpeg-dev; conda: conda install cxx-compiler libjpeg-turbo" >&2
fi
