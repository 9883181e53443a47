/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Are arbitrary bytes handled safely as the first cluster of an image?
 *
 * How it runs: see fuzzing.h.
 */

#include <config.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "format/header.h"
#include "lib/fuzzing.h"
#include "lib/header-image.h"

/* What holds for every header that is accepted. */
static void
check_accepted (const struct header *h, uint64_t file_size)
{
  CHECK (h->version == 2 || h->version == 3);
  CHECK (h->cluster_bits >= 9 && h->cluster_bits <= 21);
  CHECK (h->cluster_size == UINT64_C (1) << h->cluster_bits);
  CHECK (h->size % 512 == 0);
  CHECK (h->l1_entries <= 4 << 20 && h->l1_entries >= h->l1_needed);
  CHECK (h->l1_entries == 0 ||
         (h->l1_offset >= h->cluster_size &&
          range_within (h->l1_offset, h->l1_entries * 8, file_size)));
  CHECK (h->l1_offset % h->cluster_size == 0);
  CHECK (h->reftable_offset % h->cluster_size == 0);
  CHECK (h->reftable_clusters == 0 ||
         (h->reftable_offset >= h->cluster_size &&
          range_within (h->reftable_offset, h->reftable_clusters * h->cluster_size,
                        file_size)));
  CHECK (h->nb_snapshots == 0 ||
         range_within (h->snapshots_offset, h->nb_snapshots * UINT64_C (40), file_size));
  CHECK (h->snapshots_offset % h->cluster_size == 0);
  CHECK (h->refcount_order <= 6);
  CHECK (h->crypt_method <= 2);
  CHECK (h->has_crypto == (h->crypt_method == 2));
  CHECK ((h->incompatible & ~QCOW2_INCOMPAT_KNOWN) == 0);
  CHECK (h->l2_entry_size == 8 || h->l2_entry_size == 16);
  CHECK (h->l2_entry_size << h->l2_bits == h->cluster_size);
  CHECK (h->backing_file == NULL || strlen (h->backing_file) <= 1023);
  CHECK (h->backing_format == NULL || strlen (h->backing_format) <= 15);
}

int
LLVMFuzzerTestOneInput (const uint8_t *data, size_t size)
{
  uint8_t *copy = fuzz_copy (data, size);
  const uint64_t sizes[] = { size, IMAGE_FILE_SIZE, UINT64_C (1) << 60 };
  struct header h;

  quiet_errors = true;
  for (int i = 0; i < 3; i++) {
    if (sizes[i] < size)
      continue;
    clear_last_error ();
    if (header_parse ("fuzz", copy, size, sizes[i], &h) == 0) {
      check_accepted (&h, sizes[i]);
      header_free (&h);
    }
    else
      fuzz_check_error ();
  }
  quiet_errors = false;
  free (copy);
  return 0;
}

#ifndef FUZZING

/* A few fields or bytes of a valid image, changed. */
static void
damage (struct rng *rng, uint8_t *buf, size_t end)
{
  static const uint64_t favourites[] = {
    0, 1, 2, 3, 4, 8, 9, 15, 16, 21, 63, 64, 72, 104, 112, 512, 4096, 65535,
    65536, 1 << 20, INT32_MAX, UINT32_MAX, UINT64_C (1) << 32,
    UINT64_C (1) << 56, INT64_MAX, UINT64_MAX, 0x6803f857, 0x23852875,
    0x0537be77, 0x44415441, 0xe2792aca,
  };
  const size_t n = sizeof favourites / sizeof favourites[0];

  for (uint64_t i = 1 + rng_below (rng, 4); i > 0; i--) {
    size_t pos = rng_below (rng, end + 64);
    uint64_t v = favourites[rng_below (rng, n)];

    switch (rng_below (rng, 4)) {
    case 0:
      buf[pos] = rng_next (rng);
      break;
    case 1: {
      struct be32 x = put32 (v);
      memcpy (buf + pos / 4 * 4, &x, 4);
      break;
    }
    case 2: {
      struct be64 x = put64 (v);
      memcpy (buf + pos / 8 * 8, &x, 8);
      break;
    }
    default:
      buf[pos] ^= 1 << rng_below (rng, 8);
    }
  }
}

int
main (int argc, char *argv[])
{
  static uint8_t valid[IMAGE_CLUSTER], buf[IMAGE_CLUSTER];
  static const char names[] = "\0\x05" "a feature with a name of \x1b[31m color ";
  const struct qcow2_ext_bitmaps bitmaps = {
    put32 (1), put32 (0), put64 (100), put64 (7 * IMAGE_CLUSTER)
  };
  struct header h;
  struct rng rng;
  size_t end;

  if (fuzz_files (argc, argv, 1 << 21))
    return 0;

  rng_init (&rng, seed_from_env (), 0);
  end = image_build (valid);
  image_extension (valid, &end, QCOW2_EXT_BITMAPS, &bitmaps, sizeof bitmaps);
  image_extension (valid, &end, QCOW2_EXT_DATA_FILE, "data", 4);
  memcpy (buf, names, sizeof names);
  memset (buf + sizeof names, 0, 48 - sizeof names % 48);
  image_extension (valid, &end, QCOW2_EXT_FEATURE_NAMES, buf, 48);
  valid[95] = 1;                /* autoclear: bitmaps */

  CHECK (header_parse ("valid", valid, sizeof valid, IMAGE_FILE_SIZE, &h) == 0);
  CHECK (h.has_bitmaps && h.data_file != NULL);
  header_free (&h);
  LLVMFuzzerTestOneInput (valid, 0);
  for (int i = 0; i < 10000; i++) {
    memcpy (buf, valid, sizeof buf);
    damage (&rng, buf, end);
    LLVMFuzzerTestOneInput (buf, rng_below (&rng, 8) ? sizeof buf
                            : rng_below (&rng, sizeof buf));
  }
  return 0;
}

#endif /* !FUZZING */
