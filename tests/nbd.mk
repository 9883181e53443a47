# SPDX-License-Identifier: BSD-3-Clause
#
# How C tests run again with their images behind an NBD server (lib/reach.c): nbd/NAME is
# a script that runs NAME.  For GNU make: automake does not read this file.

$(nbd_tests) $(nbd_asan_tests) $(nbd_tsan_tests): nbd/%: %
	$(AM_V_GEN)$(MKDIR_P) $(@D) && { echo '#!/bin/sh' && \
	  echo 'QCOW2_TEST_STORAGE=nbd exec $(abs_builddir)/$*'; } > $@ && chmod +x $@
