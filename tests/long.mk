# SPDX-License-Identifier: BSD-3-Clause
#
# The short suite leaves out $(long_tests); with QCOW2_TEST_LONG in the environment, all
# run.  For GNU make: automake, which has to know all names, does not read this file.

all_tests := $(TESTS)
ifeq ($(QCOW2_TEST_LONG),)
TESTS := $(filter-out $(long_tests),$(TESTS))
endif
