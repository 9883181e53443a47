# SPDX-License-Identifier: BSD-3-Clause
#
# How C tests are built again with a sanitizer: asan/NAME and tsan/NAME are NAME, from
# objects of their own.  For GNU make: automake does not read this file.

# -O2 takes twice as long to compile.  LeakSanitizer does not blame the dynamic linker, if
# it sees that as the caller of malloc: so lib/allocations.h has to jump there.
asan_cflags = -O1 -foptimize-sibling-calls -g1 -fsanitize=address,undefined \
	-fno-omit-frame-pointer
tsan_cflags = -O1 -g1 -fsanitize=thread

# A program's variables have its name with _ for what is no letter.
sanitizer_ldflags = $($(subst -,_,$(subst /,_,$(1)))_LDFLAGS)

sanitizer_core = $(filter %.c,$(core_sources) $(door_sources) $(callback_sources))
sanitizer_lib = $(filter lib/%.c,$(libtest_la_SOURCES) $(libserver_la_SOURCES))

# $(1): the sanitizer's name
define sanitizer_rules
$(1)_objects = $$(patsubst ../%.c,$(1)/%.o,$$(sanitizer_core)) \
	$$(patsubst %.c,$(1)/%.o,$$(sanitizer_lib))

$(1)/core/%.o: $(top_srcdir)/core/%.c
	$$($(1)_compile)

$(1)/plugin/%.o: $(top_srcdir)/plugin/%.c
	$$($(1)_compile)

$(1)/%.o: $(srcdir)/%.c
	$$($(1)_compile)

define $(1)_compile
	$$(AM_V_CC)$$(MKDIR_P) $$(@D) && \
	  $$(CC) $$(DEFS) $$(DEFAULT_INCLUDES) $$(AM_CPPFLAGS) $$(CPPFLAGS) \
	    $$(door_cflags) $$(CFLAGS) $$($(1)_cflags) -MMD -MP -c -o $$@ $$<
endef

$(1)/libcore.a: $$($(1)_objects)
	$$(AM_V_AR)rm -f $$@ && $$(AR) cr $$@ $$^

$$($(1)_tests): $(1)/%: $(1)/%.o $(1)/libcore.a
	$$(AM_V_CCLD)$$(CC) $$(AM_CFLAGS) $$(CFLAGS) $$($(1)_cflags) $$(AM_LDFLAGS) \
	  $$(call sanitizer_ldflags,$$*) $$(LDFLAGS) -o $$@ $$^ $$(core_libs) $$(LIBS)

# For scripts/mutate.
.PHONY: $(1)-objects
$(1)-objects: $(1)/libcore.a $$(patsubst %,%.o,$$($(1)_tests))

.SECONDARY: $$(patsubst %,%.o,$$($(1)_tests))
-include $$(patsubst %.o,%.d,$$($(1)_objects)) $$(patsubst %,%.d,$$($(1)_tests))
endef

$(eval $(call sanitizer_rules,asan))
$(eval $(call sanitizer_rules,tsan))
