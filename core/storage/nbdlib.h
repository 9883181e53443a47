/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The functions of libnbd that the plugin uses.  See nbdlib.c.
 */

#ifndef QCOW2_NBDLIB_H
#define QCOW2_NBDLIB_H

#include <stddef.h>
#include <stdint.h>

#include <libnbd.h>

#define NBDLIB_FUNCTIONS(F) \
  F (add_meta_context) \
  F (aio_block_status) \
  F (aio_cache) \
  F (aio_connect_uri) \
  F (aio_disconnect) \
  F (aio_flush) \
  F (aio_get_direction) \
  F (aio_get_fd) \
  F (aio_in_flight) \
  F (aio_is_closed) \
  F (aio_is_connecting) \
  F (aio_is_dead) \
  F (aio_is_ready) \
  F (aio_notify_read) \
  F (aio_notify_write) \
  F (aio_pread) \
  F (aio_pwrite) \
  F (aio_zero) \
  F (can_cache) \
  F (can_fast_zero) \
  F (can_flush) \
  F (can_fua) \
  F (can_meta_context) \
  F (can_multi_conn) \
  F (can_zero) \
  F (close) \
  F (create) \
  F (get_block_size) \
  F (get_errno) \
  F (get_error) \
  F (get_size) \
  F (is_read_only) \
  F (set_handle_name) \
  F (set_uri_allow_local_file)

/* Block status with 64 bits came with libnbd 1.18, and its types with that version's
 * libnbd.h: see nbd_aio_block_status_64(3). */
struct nbdlib_extent {
  uint64_t length;              /* bytes */
  uint64_t flags;
};

struct nbdlib_extents_callback {
  int (*callback) (void *user_data, const char *context, uint64_t offset,
                   struct nbdlib_extent *, size_t n, int *error);
  void *user_data;
  void (*free) (void *user_data);
};

/* Each has the type that libnbd.h declares for nbd_NAME. */
struct nbdlib {
#define NBDLIB_MEMBER(name) typeof (nbd_##name) *name;
  NBDLIB_FUNCTIONS (NBDLIB_MEMBER)
#undef NBDLIB_MEMBER
  /* NULL: libnbd is older. */
  int64_t (*aio_block_status_64) (struct nbd_handle *, uint64_t count, uint64_t offset,
                                  struct nbdlib_extents_callback,
                                  nbd_completion_callback, uint32_t flags);
  int (*get_extended_headers_negotiated) (struct nbd_handle *);
};

/* Loads libnbd if that has not happened yet, and fills LIB.  Returns 0, or -1 with errno
 * set; *WHY is then the loader's message, which the next call of dlopen may overwrite. */
extern int nbdlib_load (struct nbdlib *lib, const char **why);

#endif /* QCOW2_NBDLIB_H */
