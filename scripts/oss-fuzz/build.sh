#!/bin/bash -eu
# SPDX-License-Identifier: BSD-3-Clause
#
# Builds the fuzz targets, as OSS-Fuzz asks for it: the sources are in the current
# directory; $CC, $CFLAGS, $CXX, $CXXFLAGS and $LIB_FUZZING_ENGINE are set; the results go
# to $OUT.

source="$PWD"
mkdir -p "$WORK/build" "$OUT/lib"
[ -x configure ] || autoreconf -i
cd "$WORK/build"
[ -x config.status ] || "$source/configure" -q
make -s -j"$(nproc)"
make -s -j"$(nproc)" -C tests FUZZ_LINKER="$CXX $CXXFLAGS" fuzzers
make -s -j"$(nproc)" -C tests fuzz/image fuzz/requests

# The libraries go along: the machines that run the targets do not have them.
for target in tests/engine/fuzz/*; do
  name="${target##*/}"
  case "$name" in *.*) continue ;; esac
  "$WORK/build/libtool" --mode=install install -m 755 "$target" "$OUT/$name" >/dev/null
  ldd "$OUT/$name" | awk '$3 ~ "^/" && $1 !~ /^(libc|libm|libpthread|libdl|librt)\./ {
                            print $3 }' |
    xargs -r cp -Lt "$OUT/lib"
  # shellcheck disable=SC2016
  patchelf --set-rpath '$ORIGIN/lib' "$OUT/$name"
  # (Large files raise SIGXFSZ, which the targets handle.)
  printf '[libfuzzer]\nhandle_xfsz = 0\nentropic = 0\nmax_len = 262144\n' \
    >"$OUT/$name.options"
done

for name in image requests; do
  rm -rf "corpus-$name"
  mkdir "corpus-$name"
  ASAN_OPTIONS=detect_leaks=0 "tests/fuzz/$name" --corpus "corpus-$name"
  zip -qj "$OUT/${name}_seed_corpus.zip" "corpus-$name"/*
done
