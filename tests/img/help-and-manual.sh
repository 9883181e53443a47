#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Each command of nbdkit-qcow2-img has its --help, is in the manual, and is completed by
# bash; the manual names all common options; wrong usage is refused in one line.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/img.sh"

manual="$srcdir/../img/nbdkit-qcow2-img.pod"

img --help > all
grep -q '^usage: nbdkit-qcow2-img \[--control SOCKET\] COMMAND ' all
for word in -h help; do img $word | diff all -; done
if grep -E '.{91}' all; then fail "--help has long lines"; fi
img --version | grep -E '^nbdkit-qcow2-img .'
mapfile -t commands < <(sed -n 's/^  \([a-z][a-z-]*\) .*/\1/p' all)
[ "${#commands[@]}" -ge 11 ]

for command in "${commands[@]}"; do
  img "$command" --help > help
  grep -q "^usage: nbdkit-qcow2-img $command " help
  grep -q -- '--help' help
  if grep -E '.{91}' help; then fail "$command --help has long lines"; fi
  # Each option has a text.
  if grep -E '^  -[^ ]*$' help; then fail "an option without a text"; fi
  grep -q "^=item B<$command>" "$manual" || fail "not in the manual: $command"
  # (For compare, 1 is the status of a difference; for validate, of a fault.)
  [[ "$command" = @(compare|validate) ]] || img_refused 'unknown option --no-such' "$command" --no-such
done
# shellcheck disable=SC2013
for command in $(sed -n 's/^=item B<\([a-z][a-z-]*\)>.*/\1/p' "$manual"); do
  [[ " ${commands[*]} " = *" $command "* ]] || fail "only in the manual: $command"
done

# The manual's examples.
(
  cd ours
  head -c 1M /dev/urandom > disk.raw
  sed -n '/^=head1 EXAMPLES/,/^=head1 SEE/s/^ nbdkit-qcow2-//p' "$manual" > examples
  [ "$(wc -l < examples)" -ge 6 ]
  while read -r example; do
    # shellcheck disable=SC2086
    $example < /dev/null
  done < examples
)

img_refused "unknown command 'nothing': see nbdkit-qcow2-img --help" nothing
img_refused "unknown command '--no-such': see nbdkit-qcow2-img --help" --no-such check
img_refused 'no command was given: see nbdkit-qcow2-img --help'
img_refused 'empty name' check ""
img_refused 'requires a value' check -f
img_refused 'ambiguous option --s' convert --s a b
img_refused 'option --force-share has no value' check --force-share=yes x
# As getopt: abbreviated, together, after operands, and none after --.
(cd ours && img create --form qcow2 -q a.qcow2 1M && img check -qfqcow2 -- a.qcow2 &&
 img check a.qcow2 --outp json | grep '"check-errors": 0')
img_refused 'No such file' check -- -q

# Nothing can be written to stdout.
if [ -w /dev/full ]; then
  for arguments in "info ours/a.qcow2" "check --output=json ours/a.qcow2" --help; do
    status=0
    { set +x; } 2>&-
    # shellcheck disable=SC2086
    img $arguments > /dev/full 2> err || status=$?
    set -x
    [ "$status" = 1 ]
    grep -q 'stdout: No space left on device' err
    [ "$(wc -l < err)" = 1 ]
  done
fi

# --- Completion.
complete_words ()
{
  mkdir -p bin
  ln -sf "$IMG" bin
  PATH="$PWD/bin:$PATH" bash -c '
    . "$1/../img/completion/nbdkit-qcow2-img"
    shift
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
    _nbdkit_qcow2_img
    printf "%s\n" "${COMPREPLY[@]}"' bash "$srcdir" "$@"
}
complete_words nbdkit-qcow2-img '' | sort > completed
for command in "${commands[@]}"; do grep -qx "$command" completed; done
complete_words nbdkit-qcow2-img convert --bit | grep -x -- --bitmaps
complete_words nbdkit-qcow2-img convert -O q | grep -x qcow2
complete_words nbdkit-qcow2-img check --output j | grep -x json
complete_words nbdkit-qcow2-img check our | grep -x ours
