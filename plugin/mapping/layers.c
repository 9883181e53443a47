/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which layers does a disk consist of, and what is known of each?
 *
 * Specification: "Header" (backing file).
 *
 * The stack of an image and all that lies below it.  Each layer has its file, the way to
 * its data (payload), its header, and where its metadata are (overlap), which is read
 * from its L1 table once; the table is checked, and dropped.
 *
 * Locks: none.  The stack does not change after it has been built, but for what
 * `preallocated' remembers.
 */

#include <config.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "util/bytes.h"
#include "util/cleanup.h"
#include "util/report.h"
#include "format/entry.h"
#include "mapping/layers-impl.h"
#include "mapping/prealloc.h"

struct layers *
layers_new (void)
{
  struct layers *s = calloc (1, sizeof *s);

  if (s == NULL)
    nbdkit_error ("calloc: %m");
  return s;
}

void
layers_free (struct layers *s)
{
  if (s == NULL)
    return;
  for (unsigned i = 0; i < s->n; i++) {
    payload_free (s->layers[i]->payload);
    hostfile_close (s->layers[i]->external);
    hostfile_close (s->layers[i]->file);
    if (!s->layers[i]->raw) {
      header_free (&s->layers[i]->header);
      overlap_free (s->layers[i]->overlap);
    }
    free (s->layers[i]);
  }
  free (s->layers);
  free (s);
}

static struct layer *
new_layer (struct layers *s)
{
  struct layer *layer;
  struct layer **p;

  p = realloc (s->layers, (s->n + 1) * sizeof *p);
  if (p == NULL) {
    nbdkit_error ("realloc: %m");
    return NULL;
  }
  s->layers = p;
  layer = calloc (1, sizeof *layer);
  if (layer == NULL)
    nbdkit_error ("calloc: %m");
  return layer;
}

/* Registers what a table of host offsets points to.  Entries that are no good
 * are left to those who follow them. */
static int
register_table (struct layer *layer, uint64_t table, uint64_t entries,
                uint64_t mask, enum overlap_kind kind)
{
  CLEANUP_FREE struct be64 *buf = NULL;
  const uint64_t cs = layer->header.cluster_size;
  uint64_t done, n, i, offset;

  buf = malloc (65536);
  if (buf == NULL) {
    nbdkit_error ("malloc: %m");
    return -1;
  }
  for (done = 0; done < entries; done += n) {
    n = min64 (entries - done, 65536 / sizeof *buf);
    if (hostfile_read (layer->file, buf, n * sizeof *buf,
                       table + done * sizeof *buf) == -1)
      return -1;
    for (i = 0; i < n; i++) {
      offset = get64 (buf[i]) & mask;
      if (offset != 0 && (offset & (cs - 1)) == 0 &&
          offset < hostfile_size (layer->file) &&
          overlap_add (layer->overlap, offset, cs, kind) == -1)
        return -1;
    }
  }
  return 0;
}

int
layers_add_qcow2 (struct layers *s, struct hostfile *file,
                  struct hostfile *data, const struct header *h,
                  struct crypt_cipher *cipher)
{
  struct layer *layer = new_layer (s);

  if (layer == NULL)
    return -1;
  layer->file = file;
  layer->external = data;
  layer->header = *h;
  layer->size = h->size;
  layer->preallocated = -1;
  layer->overlap = overlap_new (h->cluster_bits);
  if (layer->overlap == NULL) {
    nbdkit_error ("overlap_new: %m");
    goto error;
  }
  if (overlap_add (layer->overlap, h->l1_offset,
                   h->l1_entries * UINT64_C (8), OVERLAP_L1) == -1 ||
      overlap_add (layer->overlap, h->reftable_offset,
                   h->reftable_clusters * h->cluster_size,
                   OVERLAP_REFTABLE) == -1 ||
      /* Blocks first: an L1 entry that names one is then seen to be wrong. */
      register_table (layer, h->reftable_offset,
                      h->reftable_clusters * h->cluster_size / 8,
                      QCOW2_REFTABLE_OFFSET_MASK, OVERLAP_REFBLOCK) == -1 ||
      register_table (layer, h->l1_offset, h->l1_needed,
                      QCOW2_L1_OFFSET_MASK, OVERLAP_L2) == -1)
    goto error;
  if (h->has_crypto &&
      overlap_add (layer->overlap, h->crypto.offset, h->crypto.length,
                   OVERLAP_CRYPTO) == -1)
    goto error;
  layer->payload = payload_new (data ? data : file, cipher,
                                h->crypt_method == QCOW2_CRYPT_AES
                                ? PAYLOAD_GUEST_SECTORS
                                : PAYLOAD_HOST_SECTORS);
  if (layer->payload == NULL)
    goto error;
  s->layers[s->n++] = layer;
  return 0;

 error:
  overlap_free (layer->overlap);
  free (layer);
  return -1;
}

int
layers_add_raw (struct layers *s, struct hostfile *file, uint64_t size)
{
  struct layer *layer = new_layer (s);

  if (layer == NULL)
    return -1;
  layer->file = file;
  layer->raw = true;
  /* A last sector that is not whole is read as if zeros followed. */
  layer->size = size > UINT64_MAX - 511 ? size : round_up (size, 512);
  layer->payload = payload_new (file, NULL, PAYLOAD_HOST_SECTORS);
  if (layer->payload == NULL) {
    free (layer);
    return -1;
  }
  s->layers[s->n++] = layer;
  return 0;
}

unsigned
layers_count (const struct layers *s)
{
  return s->n;
}

struct hostfile *
layers_file (const struct layers *s, unsigned i)
{
  return s->layers[i]->file;
}

struct hostfile *
layers_external (const struct layers *s, unsigned i)
{
  return s->layers[i]->external;
}

struct hostfile *
layers_data_file (const struct layers *s, unsigned i)
{
  const struct layer *layer = s->layers[i];

  return layer->external ? layer->external : layer->file;
}

struct payload *
layers_payload (const struct layers *s, unsigned i)
{
  return s->layers[i]->payload;
}

struct header *
layers_header (struct layers *s, unsigned i)
{
  return s->layers[i]->raw ? NULL : &s->layers[i]->header;
}

uint64_t
layers_size (const struct layers *s, unsigned i)
{
  return s->layers[i]->size;
}

bool
layers_data_is_raw (const struct layers *s, unsigned i)
{
  const struct layer *layer = s->layers[i];

  return layer->raw ||
    (layer->external &&
     (layer->header.autoclear & QCOW2_AUTOCLEAR_RAW_DATA_FILE));
}

bool
layers_preallocated (struct layers *s, unsigned i)
{
  struct layer *layer = s->layers[i];

  /* Two threads may find it out at once, and agree. */
  if (layer->preallocated == -1)
    layer->preallocated = prealloc_detect (layer->file, &layer->header);
  return layer->preallocated;
}

struct overlap *
layers_overlap (struct layers *s, unsigned i)
{
  return s->layers[i]->overlap;
}
