# SPDX-License-Identifier: BSD-3-Clause
#
# The core: everything below level 5 (params.c, stats.c, qcow2.c).  The one list of its files, for the plugin
# and for the tests, which compile them again with sanitizers.

core_sources = \
	%reldir%/alloc-impl.h \
	%reldir%/alloc.c \
	%reldir%/alloc.h \
	%reldir%/allocpack.c \
	%reldir%/bitmap.c \
	%reldir%/bitmap.h \
	%reldir%/bitmapdir.c \
	%reldir%/bitmapdir.h \
	%reldir%/bitmapedit.c \
	%reldir%/bitmapedit.h \
	%reldir%/bitmapext.c \
	%reldir%/bitmapext.h \
	%reldir%/bytes.h \
	%reldir%/census.c \
	%reldir%/census.h \
	%reldir%/chain.c \
	%reldir%/chain.h \
	%reldir%/checkpoint.c \
	%reldir%/checkpoint.h \
	%reldir%/cleanup.h \
	%reldir%/compress.c \
	%reldir%/compress.h \
	%reldir%/cow.c \
	%reldir%/crypt.c \
	%reldir%/crypt.h \
	%reldir%/datafile.c \
	%reldir%/datafile.h \
	%reldir%/deflated.c \
	%reldir%/deflater.c \
	%reldir%/deflater.h \
	%reldir%/dir.c \
	%reldir%/dir.h \
	%reldir%/dirtyset.c \
	%reldir%/dirtyset.h \
	%reldir%/disk-impl.h \
	%reldir%/disk.c \
	%reldir%/disk.h \
	%reldir%/dropcache.c \
	%reldir%/dropcache.h \
	%reldir%/edit.c \
	%reldir%/edit.h \
	%reldir%/entry.c \
	%reldir%/entry.h \
	%reldir%/erase.c \
	%reldir%/exports.c \
	%reldir%/fill.c \
	%reldir%/fill.h \
	%reldir%/format.h \
	%reldir%/freeset.c \
	%reldir%/freeset.h \
	%reldir%/fresh.c \
	%reldir%/fresh.h \
	%reldir%/grace.c \
	%reldir%/grace.h \
	%reldir%/header.c \
	%reldir%/header.h \
	%reldir%/health.c \
	%reldir%/health.h \
	%reldir%/hostfile.c \
	%reldir%/hostfile.h \
	%reldir%/hostlock.c \
	%reldir%/hostlock.h \
	%reldir%/inflated.c \
	%reldir%/inflated.h \
	%reldir%/inflight.c \
	%reldir%/inflight.h \
	%reldir%/l2-impl.h \
	%reldir%/l2.c \
	%reldir%/l2.h \
	%reldir%/l2write.c \
	%reldir%/layers.c \
	%reldir%/layers.h \
	%reldir%/luks.c \
	%reldir%/luks.h \
	%reldir%/map-impl.h \
	%reldir%/map.c \
	%reldir%/map.h \
	%reldir%/mapedit.c \
	%reldir%/mapmem.c \
	%reldir%/overlap.c \
	%reldir%/overlap.h \
	%reldir%/pack.c \
	%reldir%/pack.h \
	%reldir%/parts.c \
	%reldir%/payload.c \
	%reldir%/payload.h \
	%reldir%/prealloc.c \
	%reldir%/prealloc.h \
	%reldir%/preallocation.h \
	%reldir%/printable.h \
	%reldir%/quarantine.c \
	%reldir%/refblock.c \
	%reldir%/refblock.h \
	%reldir%/refcount-impl.h \
	%reldir%/refcount.c \
	%reldir%/refcount.h \
	%reldir%/refgrow.c \
	%reldir%/refwrite.c \
	%reldir%/repair.c \
	%reldir%/repair.h \
	%reldir%/report.h \
	%reldir%/request.c \
	%reldir%/request.h \
	%reldir%/resize.c \
	%reldir%/resize.h \
	%reldir%/run.h \
	%reldir%/shadow-impl.h \
	%reldir%/shadow.c \
	%reldir%/shadow.h \
	%reldir%/shadowend.c \
	%reldir%/shadowtab.c \
	%reldir%/snapedit.c \
	%reldir%/snapedit.h \
	%reldir%/snapshot.c \
	%reldir%/snapshot.h \
	%reldir%/startup.c \
	%reldir%/view.h \
	%reldir%/writable.c \
	%reldir%/write.c \
	$(NULL)

# Nothing of the core is visible outside of the plugin.
core_cflags = \
	-std=gnu11 \
	-pthread \
	-fvisibility=hidden \
	$(WARNINGS_CFLAGS) \
	$(ZLIB_CFLAGS) \
	$(LIBDEFLATE_CFLAGS) \
	$(ZSTD_CFLAGS) \
	$(CRYPTO_CFLAGS) \
	$(NULL)

core_libs = \
	$(ZLIB_LIBS) \
	$(LIBDEFLATE_LIBS) \
	$(ZSTD_LIBS) \
	$(CRYPTO_LIBS) \
	$(NULL)
