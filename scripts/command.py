# SPDX-License-Identifier: BSD-3-Clause
"""What the programs for users share: --help and --version, and how they end."""

import os
import signal
import sys


def answer(word, program, version, text):
    """Has WORD, an argument, asked for --help (TEXT) or --version?  Then prints it."""
    if word not in ("--help", "--version"):
        return False
    print(text.strip() if word == "--help" else "%s %s" % (program, version))
    return True


def run(main):
    """Ends the process with the exit status that MAIN returns.  If nobody reads the output
    any more (PROGRAM | head -1), with that of a program that SIGPIPE has ended: but what
    it has started and made in the meantime is cleaned up."""
    try:
        try:
            status = main()
        finally:
            if sys.stdout:
                sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        status = 128 + signal.SIGPIPE
    sys.exit(status)
