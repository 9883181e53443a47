/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What images do users of QEMU have?
 *
 * Everything that qemu-img and qemu-io can create, in any combination: cluster sizes and
 * refcount widths, chains of layers, internal snapshots, compressed clusters,
 * preallocation, subclusters, external data files, encryption, a bitmap.
 */

#include <config.h>

#include <string.h>

#include "lib/mixture.h"
#include "lib/trials.h"

const char *const mixture_snapshot_names[2] = { "s0", "s1" };

static uint64_t
random_size (struct rng *rng, uint64_t cluster_size)
{
  uint64_t most = cluster_size == 512 ? 1 << 20 : cluster_size == 4096 ?
    4 << 20 : cluster_size == 65536 ? 12 << 20 : 16 << 20;

  if (rng_below (rng, 8) == 0)
    most = 2 * cluster_size;
  return 512 * (1 + rng_below (rng, most / 512));
}

static void
random_spec (struct rng *rng, struct image_spec *spec)
{
  static const unsigned bits[] = { 9, 9, 12, 12, 14, 16, 16, 21 };
  static const char *const preallocations[] = { "metadata", "falloc" };

  memset (spec, 0, sizeof *spec);
  spec->cluster_size = UINT64_C (1) << bits[rng_below (rng, 8)];
  spec->version = rng_below (rng, 4) ? 3 : 2;
  spec->extended = spec->version == 3 && spec->cluster_size >= 16384 &&
    rng_below (rng, 2);
  spec->refcount_bits =
    spec->version == 2 || rng_below (rng, 2) ? 16 : 1 << rng_below (rng, 7);
  spec->size = random_size (rng, spec->cluster_size);
  if (rng_below (rng, 6) == 0)
    spec->preallocation = preallocations[rng_below (rng, 2)];
}

/* Puts the guest data into a separate file. */
static void
add_data_file (struct image_spec *spec, const char *name, struct rng *rng)
{
  spec->version = 3;
  spec->data_file = name;
  spec->data_file_raw = spec->backing == NULL && rng_below (rng, 2);
}

/* Makes layers from the bottom up.  The strings of their names must stay valid. */
static void
make_layers (struct mixture *m, struct rng *rng)
{
  static const char *const names[] = { "layer0", "layer1", "layer2" };
  static const char *const data_names[] = { "data0", "data1", "data2", "data3" };
  const char *below = NULL;
  bool below_raw = false;
  unsigned i;

  m->layers = rng_below (rng, 2) ? 0 : 1 + rng_below (rng, 3);
  for (i = 0; i <= m->layers; i++) {
    const bool top = i == m->layers;
    struct image_spec spec;

    random_spec (rng, &spec);
    if (!top && i == 0 && rng_below (rng, 2)) {
      spec.raw = true;
      spec.cluster_size = 0;
      spec.size += rng_below (rng, 2) ? 0 : rng_below (rng, 512);
    }
    if (top && rng_below (rng, 4) == 0) {
      m->hot = true;
      spec.cluster_size = spec.extended ? 16384 : 4096;
      spec.size = spec.cluster_size * (16 + rng_below (rng, 24));
    }
    spec.backing = below;
    spec.backing_raw = below_raw;
    if (below && !spec.extended)
      spec.preallocation = NULL;
    if (!spec.raw && rng_below (rng, 5) == 0)
      add_data_file (&spec, data_names[i], rng);
    else if (!spec.raw && rng_below (rng, 4) == 0)
      /* (Images of version 2 with preallocation cannot be created with LUKS.) */
      spec.encrypt = rng_below (rng, 3) ||
        (spec.version == 2 && spec.preallocation) ? "aes" : "luks";
    else if (!spec.raw && spec.preallocation == NULL)
      spec.compressed = rng_below (rng, 3) == 0;
    image_create (top ? m->name : names[i], &spec);
    image_fill (top ? m->name : names[i], &spec, rng,
                top && rng_below (rng, 4) == 0 ? 0 : 1 + rng_below (rng, 8));
    if (top) {
      m->compressed = spec.compressed;
      m->spec = spec;
      m->spec.compressed = false;       /* done */
    }
    else {
      below = names[i];
      below_raw = spec.raw;
    }
  }
}

static void
make_snapshots (struct mixture *m, struct rng *rng)
{
  /* Compressed clusters share host clusters, so counts can already be large. */
  if (m->spec.data_file || m->spec.refcount_bits < (m->compressed ? 16 : 2) ||
      rng_below (rng, 3) != 0)
    return;
  for (; m->nr_snapshots < 1 + rng_below (rng, 2); m->nr_snapshots++) {
    image_snapshot (m->name, mixture_snapshot_names[m->nr_snapshots]);
    image_contents (m->name, mixture_snapshot_names[m->nr_snapshots],
                    &m->snapshots[m->nr_snapshots]);
    if (rng_below (rng, 2))
      image_fill (m->name, &m->spec, rng, 3);
  }
}

static void
make_bitmap (struct mixture *m, struct rng *rng)
{
  m->bitmap = m->spec.version == 3 && rng_below (rng, 3) == 0;
  if (m->bitmap)
    image_bitmap (m->name, MIXTURE_BITMAP, 9 + rng_below (rng, 10));
}

void
mixture_make (struct mixture *m, const char *name, struct rng *rng)
{
  *m = (struct mixture) { .name = name };
  make_layers (m, rng);
  make_snapshots (m, rng);
  make_bitmap (m, rng);
}

void
mixture_free (struct mixture *m)
{
  unsigned i;

  for (i = 0; i < m->nr_snapshots; i++)
    blob_free (&m->snapshots[i]);
}

void
mixture_print (const struct mixture *m)
{
  image_print (&m->spec);
  printf (", %u below, %u snapshots%s%s", m->layers, m->nr_snapshots,
          m->compressed ? ", compressed" : "", m->bitmap ? ", bitmap" : "");
}

void
mixture_check_snapshots (const struct mixture *m)
{
  struct blob now;

  /* (QEMU shows a snapshot with the size that the disk has now, which may have grown.) */
  for (unsigned i = 0; i < m->nr_snapshots; i++) {
    const struct blob *was = &m->snapshots[i];

    image_contents (m->name, mixture_snapshot_names[i], &now);
    if (now.len < was->len || memcmp (now.data, was->data, was->len) != 0)
      FAIL ("snapshot %s has changed", mixture_snapshot_names[i]);
    blob_free (&now);
  }
}
