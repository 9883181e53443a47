#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# scripts/quickstart works, on a local image and on one behind HTTP.  (What it installs and
# builds is there already.)

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires mkfs.ext4 -V
requires nbdcopy --version
requires busybox httpd --help
requires "$NBDKIT" curl --dump-plugin

# A tree in which nothing has to be installed or built.
mkdir -p "$tmp/top/scripts" "$tmp/top/build/release/plugin" "$tmp/bin"
cp "$srcdir/../scripts/quickstart" "$tmp/top/scripts"
cp "$srcdir/../scripts/common.sh" "$tmp/top/scripts"
cat >> "$tmp/top/scripts/common.sh" <<'END'
need_packages () { :; }
build () { :; }
END
ln -s "$srcdir"/../{README.md,COPYING,core,plugin} "$tmp/top"
ln -s "$abs_top_builddir/img" "$tmp/top/build/release/img"
# QEMU only judges: it makes no image.
cat > "$tmp/bin/qemu-img" <<END
#!/bin/bash
if [[ " \$* " = *" -O qcow2 "* || "\$1" = create ]]; then exit 99; fi
exec "$(command -v qemu-img)" "\$@"
END
ln -s "$(dirname "$PLUGIN")" "$tmp/top/build/release/plugin/.libs"
# nbdkit calls itself $version.
cat > "$tmp/bin/nbdkit" <<END
#!/bin/sh
if [ "\$1" = --version ]; then echo "nbdkit \$version"; exit; fi
exec "$(command -v "$NBDKIT")" "\$@"
END
export version
chmod +x "$tmp/bin/"*
# Nor by root.
printf '#!/bin/sh\necho 1000\n' > "$tmp/bin/id"
chmod +x "$tmp/bin/id"

# quickstart [PARAMETER]
quickstart ()
{
  TMPDIR="$sockdir" PATH="$tmp/bin:$PATH" "$tmp/top/scripts/quickstart" "$@"
}

# judged FILE: does it say what QEMU and e2fsck say?
judged ()
{
  cat "$1"
  grep '^No errors were found on the image.$' "$1"
  grep '^Images are identical.$' "$1"
  grep '^/hello in the image: written through' "$1"
  grep '^== done' "$1"
}

version=1.32.5
quickstart > "$tmp/out"
judged "$tmp/out"
[ "$(grep -c '^== nbdkit before 1\.34 .*-t 1' "$tmp/out")" = 1 ]
version="1.34.0 (a build)"
quickstart --remote > "$tmp/out"
judged "$tmp/out"
if grep 'before 1\.34' "$tmp/out"; then fail "1.34 does not abort"; fi
grep '^golden.qcow2 has not changed$' "$tmp/out"

# It ends what it has started, and leaves nothing.
ls -d "$tmp"/qcow2.* && fail "files are left"
all_ended ()
{
  ! pgrep -f "$tmp/qcow2"
}
await all_ended

fails_with 'usage: scripts/quickstart' "$tmp/top/scripts/quickstart" --far
fails_with 'no such image' "$tmp/top/scripts/quickstart" "$tmp/none"
