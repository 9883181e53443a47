#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Lines of the C sources are as long as HACKING permits: a comment ends at column 90, code
# at 95.  (An address on the web is as long as it is.)

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"

"$python" - "$srcdir/.." <<'END'
import os, sys

top, files, long = sys.argv[1], 0, []
for folder in "core", "plugin", "img", "tests":
    for where, _, names in os.walk(os.path.join(top, folder)):
        for name in names:
            if not name.endswith((".c", ".h")):
                continue
            files += 1
            comment = False
            for n, line in enumerate(open(os.path.join(where, name)), 1):
                line = line.rstrip("\n")
                comment = comment or "/*" in line
                ends = not comment or "*/" in line
                only = comment and not line.rstrip().endswith("\\")
                if len(line) > (90 if only else 95) and "://" not in line:
                    long.append("%s:%d: %d columns" % (os.path.join(where, name), n, len(line)))
                comment = comment and not ends
assert files > 500, files
print("\n".join(long))
sys.exit(bool(long))
END
