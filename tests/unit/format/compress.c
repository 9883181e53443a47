/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Compressed clusters: zlib and zstd, as QEMU uses them, read what we write; we read what
 * they write; and we refuse invalid streams exactly when they do.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include <zlib.h>
#ifdef HAVE_ZSTD
#include <zstd.h>
#endif

#include "format/compress.h"
#include "lib/allocations.h"
#include "lib/stubs.h"

#define DEFLATE QCOW2_COMPRESSION_DEFLATE
#define ZSTD QCOW2_COMPRESSION_ZSTD
#define MAX_CLUSTER (2u << 20)

/* Written over what no one may touch. */
#define GUARD 64
#define GUARD_BYTE 0xa5

static struct compress_pool *pool;

static unsigned char *
buffer (size_t n)
{
  unsigned char *p = malloc (n ? n : 1);

  CHECK (p != NULL);
  return p;
}

enum pattern { ZEROS, TEXT, MIXED, NOISE, PATTERNS };

static void
fill (struct rng *r, unsigned char *buf, size_t n, enum pattern pattern)
{
  static const char *words[] = { "lorem ", "ipsum ", "dolor ", "sit ", "amet\n" };
  size_t i, k;

  switch (pattern) {
  case ZEROS:
    memset (buf, 0, n);
    break;
  case TEXT:
    for (i = 0; i < n; i += k) {
      const char *w = words[rng_below (r, 5)];

      k = strlen (w);
      if (k > n - i)
        k = n - i;
      memcpy (buf + i, w, k);
    }
    break;
  case MIXED:
    for (i = 0; i < n; i++)
      buf[i] = i / 64 % 4 ? i / 4096 : rng_below (r, 256);
    break;
  default:
    for (i = 0; i < n; i++)
      buf[i] = rng_next (r);
  }
}

/* --- streams made without our code --- */

static size_t
zlib_stream (const void *in, size_t n, void *out, size_t room, int bits,
             int level, int flush)
{
  z_stream z = { 0 };
  int r;

  CHECK (deflateInit2 (&z, level, Z_DEFLATED, bits, 8,
                       Z_DEFAULT_STRATEGY) == Z_OK);
  z.next_in = (Bytef *) in;
  z.avail_in = n;
  z.next_out = out;
  z.avail_out = room;
  r = deflate (&z, flush);
  CHECK (flush == Z_FINISH ? r == Z_STREAM_END : r == Z_OK);
  CHECK (z.avail_in == 0);
  room -= z.avail_out;
  deflateEnd (&z);
  return room;
}

#ifdef HAVE_ZSTD

enum { NO_SIZE = 1, CHECKSUM = 2, LONG_WINDOW = 4 };

static size_t
zstd_frame (const void *in, size_t n, void *out, size_t room, unsigned flags)
{
  ZSTD_CCtx *z = ZSTD_createCCtx ();
  ZSTD_inBuffer i = { in, n, 0 };
  ZSTD_outBuffer o = { out, room, 0 };
  size_t r;

  CHECK (z != NULL);
  ZSTD_CCtx_setParameter (z, ZSTD_c_contentSizeFlag, !(flags & NO_SIZE));
  ZSTD_CCtx_setParameter (z, ZSTD_c_checksumFlag, !!(flags & CHECKSUM));
  if (flags & LONG_WINDOW) {
    /* 128 MiB.  It is cut down to the size of the data if that is known, so let it
     * not be known. */
    ZSTD_CCtx_setParameter (z, ZSTD_c_windowLog, 27);
    r = ZSTD_compressStream2 (z, &o, &i, ZSTD_e_continue);
    CHECK (!ZSTD_isError (r));
  }
  r = ZSTD_compressStream2 (z, &o, &i, ZSTD_e_end);
  CHECK (r == 0 && i.pos == n);
  ZSTD_freeCCtx (z);
  return o.pos;
}

static size_t
zstd_skippable (void *out, uint32_t len)
{
  const unsigned char head[8] = {
    0x52, 0x2a, 0x4d, 0x18, len, len >> 8, len >> 16, len >> 24
  };

  memcpy (out, head, 8);
  memset ((char *) out + 8, 'x', len);
  return 8 + len;
}

#endif /* HAVE_ZSTD */

/* --- the judge: the documented interface of the libraries, called as FORMAT 1.3
 * says that QEMU reads clusters --- */

static bool
judge (unsigned type, const void *in, size_t in_len, void *out, size_t n)
{
  if (type == DEFLATE) {
    z_stream z = { 0 };
    int r;

    CHECK (inflateInit2 (&z, -15) == Z_OK);
    z.next_in = (Bytef *) in;
    z.avail_in = in_len;
    z.next_out = out;
    z.avail_out = n;
    r = inflate (&z, Z_FINISH);
    inflateEnd (&z);
    return (r == Z_STREAM_END || r == Z_BUF_ERROR) && z.avail_out == 0;
  }
#ifdef HAVE_ZSTD
  ZSTD_DCtx *z = ZSTD_createDCtx ();
  ZSTD_inBuffer i = { in, in_len, 0 };
  ZSTD_outBuffer o = { out, n, 0 };
  size_t r = 1, was_in, was_out;

  CHECK (z != NULL);
  while (o.pos < o.size) {
    was_in = i.pos;
    was_out = o.pos;
    r = ZSTD_decompressStream (z, &o, &i);
    if (ZSTD_isError (r) || (i.pos == was_in && o.pos == was_out)) {
      r = 1;
      break;
    }
  }
  ZSTD_freeDCtx (z);
  return r == 0;
#else
  return false;
#endif
}

/* Inflates IN, of exactly that many bytes of memory, and looks for damage. */
static bool
inflates (unsigned type, const void *in, size_t in_len,
          unsigned char *out, size_t n)
{
  unsigned char *exact = buffer (in_len);
  int r, err;

  memcpy (exact, in, in_len);
  memset (out + n, GUARD_BYTE, GUARD);
  errno = 0;
  r = compress_inflate (pool, type, exact, in_len, out, n);
  err = errno;
  CHECK (memcmp (exact, in, in_len) == 0);
  free (exact);
  for (size_t i = 0; i < GUARD; i++)
    CHECK (out[n + i] == GUARD_BYTE);
  CHECK (r == 0 || (r == -1 && err == EIO));
  return r == 0;
}

/* ... and compares with what it should be. */
static bool
inflates_to (unsigned type, const void *in, size_t in_len,
             const void *expect, size_t n)
{
  unsigned char *out = buffer (n + GUARD);
  bool r;

  memset (out, 0x77, n);
  r = inflates (type, in, in_len, out, n);
  if (r)
    CHECK (memcmp (out, expect, n) == 0);
  free (out);
  return r;
}

/* --- tests --- */

/* There and back, in every size and with every kind of padding. */
static void
test_round_trip (struct rng *r, unsigned type)
{
  for (unsigned bits = 9; bits <= 21; bits++) {
    const size_t n = (size_t) 1 << bits;
    unsigned char *in = buffer (n), *out = buffer (2 * n + GUARD);
    unsigned char *again = buffer (n + GUARD);

    for (int p = 0; p < PATTERNS; p++) {
      size_t len, padded;

      fill (r, in, n, p);
      memset (out, GUARD_BYTE, 2 * n + GUARD);
      len = compress_deflate (pool, type, in, n, out, n);
      CHECK (len < n);
      for (size_t i = n - 1; i < 2 * n; i++)
        CHECK (out[i] == GUARD_BYTE);
      if (p == NOISE) {
        CHECK (len == 0);
        continue;
      }
      CHECK (len > 0);

      /* As others read it: small windows for deflate, one frame that tells its
       * size for zstd. */
      if (type == DEFLATE) {
        z_stream z = { 0 };

        CHECK (inflateInit2 (&z, -12) == Z_OK);
        z.next_in = out;
        z.avail_in = len;
        z.next_out = again;
        z.avail_out = n;
        CHECK (inflate (&z, Z_FINISH) == Z_STREAM_END);
        CHECK (z.avail_out == 0 && z.avail_in == 0);
        inflateEnd (&z);
      }
#ifdef HAVE_ZSTD
      else {
        CHECK (ZSTD_getFrameContentSize (out, len) == n);
        CHECK (ZSTD_findFrameCompressedSize (out, len) == len);
        CHECK (ZSTD_decompress (again, n, out, len) == n);
      }
#endif
      CHECK (memcmp (again, in, n) == 0);

      /* No room: not even one byte too little. */
      memset (again, GUARD_BYTE, n);
      CHECK (compress_deflate (pool, type, in, n, again, len - 1) == 0);
      for (size_t i = len - 1; i < n; i++)
        CHECK (again[i] == GUARD_BYTE);
      CHECK (compress_deflate (pool, type, in, n, again, 0) == 0);

      CHECK (inflates_to (type, out, len, in, n));
      padded = (len + 511) / 512 * 512;
      memset (out + len, 0, padded - len);
      CHECK (inflates_to (type, out, padded, in, n));
      fill (r, out + len, padded + 512 - len, NOISE);
      CHECK (inflates_to (type, out, padded, in, n));
      CHECK (inflates_to (type, out, padded + 512, in, n));

      /* Cut off. */
      CHECK (!inflates (type, out, 0, again, n));
      CHECK (!inflates (type, out, len / 2, again, n));
      /* Shorter or longer than a cluster. */
      CHECK (!inflates_to (type, out, padded, in, 2 * n));
      CHECK (inflates_to (type, out, padded, in, n / 2) == (type == DEFLATE));
      CHECK (inflates_to (type, out, padded, in, n - 1) == (type == DEFLATE));
    }
    free (in);
    free (out);
    free (again);
  }
}

static void
test_deflate (struct rng *r)
{
  const size_t n = 65536;
  unsigned char *in = buffer (2 * n), *out = buffer (3 * n);
  unsigned char *again = buffer (n + GUARD);
  size_t len;

  for (int p = 0; p < PATTERNS; p++) {
    fill (r, in, 2 * n, p);

    for (int level = 0; level <= 9; level++) {
      /* The largest window, and no compression at all. */
      len = zlib_stream (in, n, out, 3 * n, -15, level, Z_FINISH);
      CHECK (inflates_to (DEFLATE, out, len, in, n));
      /* A stream that goes on, with a match across the end of the cluster. */
      len = zlib_stream (in, 2 * n, out, 3 * n, -12, level, Z_FINISH);
      CHECK (inflates_to (DEFLATE, out, len, in, n));
      CHECK (inflates_to (DEFLATE, out, len, in, n + 1));
      /* One that has all of the cluster, but no end. */
      len = zlib_stream (in, n, out, 3 * n, -12, level, Z_SYNC_FLUSH);
      CHECK (inflates_to (DEFLATE, out, len, in, n));
      CHECK (!inflates (DEFLATE, out, len - 8, again, n));
      /* One with the header and checksum of zlib, or of gzip. */
      len = zlib_stream (in, n, out, 3 * n, 15, level, Z_FINISH);
      CHECK (!inflates (DEFLATE, out, len, again, n));
      len = zlib_stream (in, n, out, 3 * n, 31, level, Z_FINISH);
      CHECK (!inflates (DEFLATE, out, len, again, n));
    }
  }
  memset (out, 0, 3 * n);
  CHECK (!inflates (DEFLATE, out, n, again, n));

  /* What we write needs no window of more than 4K: noise that comes again after 3K
   * becomes much smaller, noise that comes again after 5K does not. */
  for (size_t period = 3072; period <= 5120; period += 2048) {
    fill (r, in, period, NOISE);
    for (size_t i = period; i < n; i++)
      in[i] = in[i - period];
    len = compress_deflate (pool, DEFLATE, in, n, out, n);
    CHECK ((len > 0 && len < n / 2) == (period < 4096));
  }
  free (in);
  free (out);
  free (again);
}

#ifdef HAVE_ZSTD

static void
test_zstd (struct rng *r)
{
  const size_t n = 65536, room = 4 * n;
  unsigned char *in = buffer (2 * n), *out = buffer (room);
  unsigned char *again = buffer (n + GUARD);
  size_t len, end;

  fill (r, in, 2 * n, TEXT);

  for (unsigned flags = 0; flags < 8; flags++) {
    len = zstd_frame (in, n, out, room, flags);
    CHECK (inflates_to (ZSTD, out, len, in, n));
    CHECK (inflates_to (ZSTD, out, len + 512, in, n));
    CHECK (!inflates (ZSTD, out, len - 1, again, n));
    if (flags & CHECKSUM) {
      out[len - 1] ^= 1;
      CHECK (!inflates (ZSTD, out, len, again, n));
    }

    len = zstd_frame (in, n + 1, out, room, flags);
    CHECK (!inflates (ZSTD, out, len, again, n));
    len = zstd_frame (in, n - 1, out, room, flags);
    CHECK (!inflates (ZSTD, out, len, again, n));
    CHECK (!inflates (ZSTD, out, room, again, n));

    /* Frames of several sizes, empty ones and skippable ones among them. */
    len = zstd_skippable (out, 100);
    len += zstd_frame (in, 1000, out + len, room - len, flags);
    len += zstd_frame (in, 0, out + len, room - len, flags);
    len += zstd_frame (in + 1000, 50000, out + len, room - len, 0);
    len += zstd_skippable (out + len, 0);
    end = len;
    len += zstd_frame (in + 51000, n - 51000, out + len, room - len, flags);
    CHECK (inflates_to (ZSTD, out, len, in, n));
    len += zstd_skippable (out + len, 600);
    CHECK (inflates_to (ZSTD, out, len, in, n));
    /* What comes after the cluster is padding, even if it is a frame ... */
    len += zstd_frame (in, n, out + len, room - len, flags);
    CHECK (inflates_to (ZSTD, out, len, in, n));
    /* ... but a frame that only begins in it is none. */
    len = end + zstd_frame (in + 51000, n - 50999, out + end, room - end, flags);
    CHECK (!inflates (ZSTD, out, len, again, n));
  }
  memset (out, 0, room);
  CHECK (!inflates (ZSTD, out, n, again, n));
  free (in);
  free (out);
  free (again);
}

#endif /* HAVE_ZSTD */

/* Damaged streams: the same verdict, and the same cluster, as the judge's; but
 * libdeflate takes symbols that deflate has no use for as lengths, where zlib refuses
 * the stream. */
static void
test_damage (struct rng *r, unsigned type, unsigned rounds)
{
  const size_t max = 16384;
  unsigned char *in = buffer (max), *bad = buffer (2 * max);
  unsigned char *a = buffer (max + GUARD), *b = buffer (max);
#ifdef HAVE_LIBDEFLATE
  const bool lenient = type == DEFLATE;
#else
  const bool lenient = false;
#endif
  unsigned accepted = 0, refused = 0, tolerated = 0;

  for (unsigned i = 0; i < rounds; i++) {
    const size_t n = (size_t) 512 << rng_below (r, 6);
    size_t len;

    fill (r, in, n, rng_below (r, NOISE));
    if (type == DEFLATE)
      len = zlib_stream (in, n, bad, 2 * max, rng_below (r, 2) ? -12 : -15,
                         rng_below (r, 10), Z_FINISH);
    else
      len = compress_deflate (pool, type, in, n, bad, n);
    CHECK (len > 0);
    fill (r, bad + len, 512, rng_below (r, 2) ? ZEROS : NOISE);

    switch (rng_below (r, 4)) {
    case 0:                     /* pure noise */
      fill (r, bad, len, NOISE);
      break;
    case 1:                     /* cut off */
      len = rng_below (r, len);
      break;
    case 2:                     /* cut off, and something else follows */
      len += rng_below (r, 513);
      fill (r, bad + len / 2, len - len / 2, rng_below (r, PATTERNS));
      break;
    default:                    /* a few bits */
      for (uint64_t k = 1 + rng_below (r, 8); k > 0; k--)
        bad[rng_below (r, len)] ^= 1 << rng_below (r, 8);
      len += rng_below (r, 513);
    }

    memset (a, 0, n);
    memset (b, 0, n);
    if (inflates (type, bad, len, a, n)) {
      if (judge (type, bad, len, b, n))
        CHECK (memcmp (a, b, n) == 0);
      else
        tolerated++;
      accepted++;
    }
    else {
      CHECK (!judge (type, bad, len, b, n));
      refused++;
    }
  }
  printf ("%s, damaged: %u accepted (%u only by us), %u refused\n",
          compress_name (type), accepted, tolerated, refused);
  CHECK (refused > rounds / 4);
  CHECK (tolerated <= (lenient ? rounds / 50 : 0));
  free (in);
  free (bad);
  free (a);
  free (b);
}

static void
test_types (void)
{
  char in[512] = "", out[512];

  CHECK (compress_supported (DEFLATE));
#ifdef HAVE_ZSTD
  CHECK (compress_supported (ZSTD));
#else
  CHECK (!compress_supported (ZSTD));
#endif
  CHECK (!compress_supported (2));
  CHECK (strcmp (compress_name (DEFLATE), "zlib") == 0);
  CHECK (strcmp (compress_name (ZSTD), "zstd") == 0);
  CHECK (strcmp (compress_name (2), "unknown") == 0);

  CHECK (compress_inflate (pool, 2, in, 512, out, 512) == -1);
  CHECK (errno == ENOTSUP);
  CHECK (compress_deflate (pool, 2, in, 512, out, 512) == 0);
  CHECK (compress_deflate (pool, DEFLATE, in, 0, out, 512) == 0);
  if (!compress_supported (ZSTD)) {
    CHECK (compress_inflate (pool, ZSTD, in, 512, out, 512) == -1);
    CHECK (errno == ENOTSUP);
    CHECK (compress_deflate (pool, ZSTD, in, 512, out, 512) == 0);
  }
}

/* A pool that has no memory for a codec. */
static void
test_no_memory (unsigned type)
{
  static unsigned char cluster[4096], packed[4096];
  struct compress_pool *fresh = compress_pool_new (NULL);
  const size_t n = compress_deflate (pool, type, cluster, sizeof cluster, packed,
                                     sizeof packed);

  CHECK (fresh != NULL && n > 0);
  shortage_begin ((struct shortage) { .times = UINT64_MAX });
  CHECK (compress_inflate (fresh, type, packed, n, cluster, sizeof cluster) == -1 &&
         errno == ENOMEM);
  if (type == DEFLATE)
    CHECK (compress_inflate_beginning (fresh, packed, n, cluster, 100) == -1 &&
           errno == ENOMEM);
  CHECK (compress_deflate (fresh, type, cluster, sizeof cluster, packed,
                           sizeof packed) == 0);
  CHECK (shortage_end () > 0);
  CHECK (compress_inflate (fresh, type, packed, n, cluster, sizeof cluster) == 0);
  compress_pool_free (fresh);
}

int
main (void)
{
  struct rng r;

  rng_init (&r, seed_from_env (), 0);
  pool = compress_pool_new (NULL);
  CHECK (pool != NULL);

  test_types ();
  test_round_trip (&r, DEFLATE);
  test_deflate (&r);
  test_damage (&r, DEFLATE, 3000);
  test_no_memory (DEFLATE);
#ifdef HAVE_ZSTD
  test_round_trip (&r, ZSTD);
  test_zstd (&r);
  test_damage (&r, ZSTD, 3000);
  test_no_memory (ZSTD);
#endif

  compress_pool_free (pool);
  compress_pool_free (NULL);
  CHECK (error_count () == 0);
  return 0;
}
