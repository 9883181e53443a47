# SPDX-License-Identifier: BSD-3-Clause
#
# How fuzz targets are built for an engine: `make fuzzers' makes engine/fuzz/NAME of
# each.  CC, CFLAGS and LIB_FUZZING_ENGINE are the engine's, as OSS-Fuzz sets them.  For
# GNU make: automake does not read this file.

LIB_FUZZING_ENGINE ?= -fsanitize=fuzzer
# Some engines are C++.
FUZZ_LINKER ?= $(CC) $(CFLAGS)

fuzz_targets = $(filter fuzz/%,$(c_tests))
fuzzers = $(patsubst %,engine/%,$(fuzz_targets))

engine/fuzz/%.o: $(srcdir)/fuzz/%.c
	$(AM_V_CC)$(MKDIR_P) $(@D) && \
	  $(CC) $(DEFS) $(DEFAULT_INCLUDES) $(AM_CPPFLAGS) $(CPPFLAGS) \
	    $(door_cflags) $(CFLAGS) -DFUZZING -MMD -MP -c -o $@ $<

$(fuzzers): engine/%: engine/%.o libserver.la libdoor.la libtest.la \
	    ../core/libqcow2core.la
	$(AM_V_CCLD)$(LIBTOOL) $(AM_V_lt) --tag=CC --mode=link $(FUZZ_LINKER) \
	  $(AM_CFLAGS) $(server_ldflags) $(LDFLAGS) -o $@ $^ $(LIB_FUZZING_ENGINE) $(LIBS)

fuzzers: $(fuzzers)
.PHONY: fuzzers

.SECONDARY: $(patsubst %,%.o,$(fuzzers))
-include $(patsubst %,%.d,$(fuzzers))
