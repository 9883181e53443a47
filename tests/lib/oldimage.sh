# SPDX-License-Identifier: BSD-3-Clause
#
# Is an image served as the disk, or refused because the disk has gone on in another one?

# not_written PHRASE IMAGE NEW [FILE]: it is refused, as FILE, with PHRASE before the name of
# NEW; it does not change.
not_written ()
{
  local before
  before="$(fingerprint "$2")"
  start_nbdkit file="${4:-$2}"
  refused_connection "${4:-$2}: is not written: $1 $3"
  kill9_nbdkit
  [ "$before" = "$(fingerprint "$2")" ]
}

# current IMAGE: it can be written.
current ()
{
  start_nbdkit file="$1"
  nbdsh_run -c 'h.pwrite(b"w" * 512, 1 << 19)'
  stop_nbdkit
  check_clean "$1"
}
