# SPDX-License-Identifier: BSD-3-Clause
"""Checks qcow2 images for faults.

usage: nbdkit-qcow2-validate [OPTION...] [--] IMAGE...
       nbdkit-qcow2-validate --merge [OPTION...] [--] REPORT...

For each image:
  check       nbdkit's qcow2 plugin checks the metadata, and reads everything that is
              stored, in all files of the backing chain (check=full)
  read        read every byte of the disk over NBD
  sha256      with --sha256 or --sums: compare the checksum of the disk
  filesystem  with --fsck: e2fsck, xfs_repair or fsck.vfat finds no fault in the
              filesystems of the disk and its partitions

Images are not changed.  QEMU is not needed, but nbdkit with the qcow2 plugin, nbdcopy
(libnbd-bin) and python3 are.

  --policy POLICY         first decide whether the image is accepted: POLICY is upload,
                          strict, or a file (see nbdkit-qcow2-validate(1)).  This opens
                          no other file, and takes at most 64 MiB and 10 seconds.  IMAGE -
                          is a stream on stdin, which is read to its end.  The steps above
                          follow, for what is accepted, only if one of their options is
                          given
  --sha256 SUM            the expected checksum of the disk (not of the file); only with
                          one IMAGE
  --sums FILE             a file with the checksums of disks, in the format of sha256sum,
                          with the names of the images; other images fail
  --hash                  always compute the checksum, for --json
  --fsck                  check filesystems; each is first copied to TMPDIR
  --check quick|full      how thoroughly the plugin checks (default full)
  --no-read               do not read the disk
  --no-leaks              treat leaked clusters as a failure; by default they are only
                          reported
  --passphrase-file FILE  file with the passphrase of encrypted images
  --param KEY=VALUE       another parameter for the plugin, such as backing=deny; may be
                          repeated
  --list FILE             more images: a file with their names, each on a line of its own
                          (or ended by a NUL, as find -print0 writes them); - is stdin
  --jobs N                number of images to check at a time (default: the number of
                          processors)
  --timeout SECONDS       time limit for each command, and for a stream (default: none)
  --json FILE             write all results to FILE, as JSON
  --junit FILE            write all results to FILE, as JUnit XML
  --shard I/N             validate only part I (1 to N) of the images: N jobs with the
                          same images and options, and each with its own I, validate
                          all.  The numbers of images in the parts differ by one at most
  --balance               with --shard: each part has about the same number of bytes, by
                          the sizes of the files
  --merge                 join the reports (--json) of all shards: print, write and return
                          what one run for all images would.  A missing report is an
                          error; reports that do not belong together are refused.  Only
                          --json and --junit can be used with it
  --plugin PLUGIN         name or path of the plugin (default qcow2)
  --nbdkit PROGRAM        name or path of nbdkit (default nbdkit)
  --help                  show this text
  --version               show the version

Results go to stdout as TAP, one test for each step of each image.  Exit status:
  0  no fault was found in any image
  1  an image has a fault
  2  wrong usage, or reports that do not belong together
  3  no fault was found, but an image could not be validated (it does not exist, another
     program uses it, the passphrase is wrong, a backing file or a tool is missing)
"""

import argparse
import os
import queue
import re
import signal
import sys
import threading

import command
import publicname
from policy import Policy
from programs import printable
from results import Tap, as_json, as_junit, replace_file
from shards import MAX_SHARDS, in_order, merge, part, shard_of, weight
from steps import ERROR, FAILED, Image


def read_list(name):
    if name == "-":
        data = sys.stdin.buffer.read()
    else:
        with open(name, "rb") as f:
            data = f.read()
    return [os.fsdecode(x) for x in data.split(b"\0" if b"\0" in data else b"\n") if x]


def read_sums(name):
    """As sha256sum writes them; a leading backslash: the name is escaped."""
    sums = {}
    with open(name, encoding="utf-8", errors="surrogateescape", newline="\n") as f:
        for line in f:
            m = re.fullmatch(r"(\\?)([0-9a-fA-F]{64}) [ *](.+)\n?", line)
            if m is None:
                raise ValueError("%s: not a line of sha256sum: %s"
                                 % (printable(name), printable(line.rstrip("\n"))))
            path = m.group(3)
            if m.group(1):
                path = re.sub(r"\\([n\\r])", lambda x: {"n": "\n", "r": "\r"}.get(
                    x.group(1), "\\"), path)
            sums[path] = m.group(2).lower()
    return sums


def parse(argv, version):
    p = argparse.ArgumentParser(add_help=False, usage=argparse.SUPPRESS,
                                allow_abbrev=False, prog="nbdkit-qcow2-validate")
    p.add_argument("images", nargs="*")
    p.add_argument("--policy")
    p.add_argument("--sha256")
    p.add_argument("--sums")
    p.add_argument("--hash", action="store_true")
    p.add_argument("--fsck", action="store_true")
    p.add_argument("--check", choices=("quick", "full"))
    p.add_argument("--no-read", action="store_true")
    p.add_argument("--no-leaks", action="store_true")
    p.add_argument("--passphrase-file")
    p.add_argument("--param", action="append", default=[])
    p.add_argument("--list")
    p.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    p.add_argument("--timeout", type=float)
    p.add_argument("--json")
    p.add_argument("--junit")
    p.add_argument("--shard")
    p.add_argument("--balance", action="store_true")
    p.add_argument("--merge", action="store_true")
    p.add_argument("--plugin", default="qcow2")
    p.add_argument("--nbdkit", default="nbdkit")
    p.add_argument("--help", action="store_true")
    p.add_argument("--version", action="store_true")
    o = p.parse_args(argv)
    for word in ("--help", "--version"):
        if getattr(o, word[2:]):
            command.answer(word, p.prog, version, __doc__)
            sys.exit(0)
    if o.merge:
        for option in sorted(vars(o)):
            if option not in ("images", "merge", "json", "junit") and \
               getattr(o, option) != p.get_default(option):
                p.error("--merge cannot be used with --" + option.replace("_", "-"))
    if o.list is not None:
        try:
            o.images += read_list(o.list)
        except OSError as e:
            p.error("--list: %s" % e)
    if not o.images:
        p.error("no %s was given: see --help" % ("report" if o.merge else "image"))
    for name in o.images:
        if publicname.is_uri(name) and not o.merge and not os.path.exists(name):
            p.error("must be the name of a file, not a URI: %s"
                    % printable(publicname.shown(name)))
    parse_shard(p, o)
    parse_policy(p, o)
    o.check = o.check or "full"
    if o.jobs < 1 or (o.timeout is not None and o.timeout <= 0):
        p.error("--jobs and --timeout must be more than 0")
    for x in o.param:
        if not re.match(r"[a-z][-a-z0-9]*=", x):
            p.error("--param: not KEY=VALUE: %s" % printable(x))
    if o.sha256 is not None:
        o.sha256 = o.sha256.lower()
        if len(o.images) != 1 or o.sums is not None:
            p.error("--sha256 is for one image: see --sums")
        if not re.fullmatch("[0-9a-f]{64}", o.sha256):
            p.error("--sha256: not a checksum of 64 hexadecimal digits")
    # --json *.qcow2 must not cost anybody the first one.
    for option, name, first in ("--json", o.json, b"{"), ("--junit", o.junit, b"<"):
        if name == "-":
            p.error("%s: stdout is for TAP; give the name of a file" % option)
        if name and os.path.isfile(name):
            try:
                with open(name, "rb") as f:
                    if f.read(1) not in (b"", first):
                        p.error("%s: %s exists and is not a report"
                                % (option, printable(name)))
            except OSError as e:
                p.error("%s: %s" % (option, e))
    if o.sums is not None:
        try:
            o.sums = read_sums(o.sums)
        except (OSError, ValueError) as e:
            p.error("--sums: %s" % e)
    return o


def parse_policy(p, o):
    o.policy_only = o.policy is not None and not (
        o.check or o.sha256 or o.sums is not None or o.hash or o.fsck or o.no_read)
    if o.policy is not None:
        try:
            o.policy = Policy(o.policy)
        except (OSError, ValueError) as e:
            p.error("--policy: %s: %s" % (printable(o.policy),
                                          e.strerror if isinstance(e, OSError) else e))
    if "-" in o.images and not o.merge:
        if not o.policy_only:
            p.error("- (stdin) can only be judged by --policy: for a file write ./-")
        if o.images.count("-") > 1 or o.list == "-":
            p.error("- (stdin) was given twice")


def parse_shard(p, o):
    if o.shard is None:
        if o.balance:
            p.error("--balance requires --shard")
        return
    m = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", o.shard)
    o.shard = m and tuple(map(int, m.groups()))
    if not m or not 1 <= o.shard[0] <= o.shard[1] <= MAX_SHARDS:
        p.error("--shard: not I/N, with I from 1 to N, and N at most %d" % MAX_SHARDS)
    twice = [n for n, next_n in zip(in_order(o.images), in_order(o.images)[1:])
             if n == next_n]
    if twice:
        p.error("--shard: an image was given twice: %s" % printable(twice[0]))


def validate_all(images, o):
    """Each image, when it has been validated."""
    todo, done = queue.SimpleQueue(), queue.SimpleQueue()
    for i in images:
        todo.put(i)

    def work():
        while True:
            try:
                image = todo.get_nowait()
            except queue.Empty:
                return
            try:
                image.validate()
            except BaseException as e:
                image.steps.append(("validate", ERROR, repr(e), 0))
            done.put(image)

    for _ in range(min(o.jobs, len(images))):
        threading.Thread(target=work, daemon=True).start()
    for _ in images:
        yield done.get()


def main(argv, version):
    o = parse(argv[1:], version)
    # Whatever the locale, a name is no reason to fail.
    sys.stdout.reconfigure(errors="backslashreplace")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    shard = o.shard and shard_of(o)
    if o.merge:
        try:
            images = merge(o.images)
        except ValueError as e:
            print("nbdkit-qcow2-validate: %s" % e, file=sys.stderr)
            return 2
    elif shard:
        names = part(o.images, *o.shard, weight if o.balance else lambda _: 1)
        images = [Image(name, o) for name in in_order(names)]
    else:
        images = [Image(name, o) for name in o.images]
    tap = Tap()
    for image in images if o.merge else validate_all(images, o):
        tap.tell(image)
    tap.end()
    try:
        if o.json:
            replace_file(o.json, as_json(images, shard))
        if o.junit:
            replace_file(o.junit, as_junit(images))
    except OSError as e:
        print("nbdkit-qcow2-validate: %s" % e, file=sys.stderr)
        return 3
    have = [i.status() for i in images]
    return 1 if FAILED in have else 3 if ERROR in have else 0
