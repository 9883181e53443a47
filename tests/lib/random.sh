# shellcheck shell=bash
# SPDX-License-Identifier: BSD-3-Clause
#
# What random shell tests share.  To be sourced after functions.sh.  The same SEED in the
# environment repeats a run.
#
# In each subshell, bash begins another sequence of random numbers, whatever the seed was.
# So $RANDOM and the functions below must not be used in $(...), (...) or a pipe.

RANDOM=${SEED:=$RANDOM}
echo "SEED=$SEED"

# any VARIABLE VALUE...: sets the variable to one of the values.
any ()
{
  [ "$BASH_SUBSHELL" = 0 ] || fail "random choice in a subshell: $*"
  printf -v "$1" %s "${@:RANDOM % ($# - 1) + 2:1}"
}

# Options of an image, as for qemu-img -o.
# shellcheck disable=SC2034
image_options=(
  cluster_size=64k cluster_size=4k cluster_size=2M extended_l2=on,cluster_size=128k
  cluster_size=512,refcount_bits=64 lazy_refcounts=on
)

# scribble FORMAT FILE MIB: some writes, zeros and discards, in a disk of MIB.
scribble ()
{
  local commands=() size=$(($3 << 20)) at left i

  [ "$BASH_SUBSHELL" = 0 ] || fail "random writes in a subshell: $*"
  for ((i = RANDOM % 12; i > 0; i--)); do
    at=$((RANDOM * 32 % (size / 512) * 512)) left=$((size - at))
    case $((RANDOM % 5)) in
      0) commands+=("write -z $at $((left < 299520 ? 512 : 299520))") ;;
      1) commands+=("write -z -u $((at >> 21 << 21)) 1M") ;;
      2) commands+=("discard $((at >> 21 << 21)) 1M") ;;
      *) commands+=("write -P $((i + RANDOM % 100)) $at $((left < 70144 ? 512 : 70144))") ;;
    esac
  done
  if [ ${#commands[@]} != 0 ]; then io_as "$1" "$2" "${commands[@]}"; fi
}
