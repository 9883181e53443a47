/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How are the results of a check reported, to people and to programs?
 *
 * People get one line, preceded by the first faults if there are any.  Programs get JSON,
 * with the names that qemu-img check uses where it has one.  Both have a limited size.
 *
 * JSON is UTF-8, but a path may contain any bytes: bytes that are not valid UTF-8 are
 * written as \udc80 to \udcff, as Python's os.fsdecode does.
 *
 * Locks: none.
 */

#include <config.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/report.h"
#include "util/utf8.h"
#include "storage/reportfile.h"
#include "format/compress.h"
#include "check/checkreport.h"

static const struct report_kind kind = { "check-report", "{\n  \"filename\": \"" };

/* The number of faults that are reported to people. */
#define TOLD 20

static const char *
verdict_word (enum check_verdict verdict)
{
  switch (verdict) {
  case CHECK_CLEAN: return "clean";
  case CHECK_LEAKS: return "leaks";
  case CHECK_DIRTY: return "dirty";
  case CHECK_CORRUPT: return "corrupt";
  case CHECK_FAILED: return "failed";
  }
  abort ();
}

/* --- for people --- */

struct sums {
  uint64_t corruptions, leaks, stale, leaks_fixed, corruptions_fixed;
  uint64_t marked, bitmaps_in_use;
};

static struct sums
add_up (const struct check_result *r)
{
  struct sums sums = { 0 };
  size_t i;

  for (i = 0; i < r->n; i++) {
    const struct check_layer *l = r->layers[i];

    sums.corruptions += l->corruptions;
    sums.leaks += l->leaks;
    sums.stale += l->stale;
    sums.leaks_fixed += l->leaks_fixed;
    sums.corruptions_fixed += l->corruptions_fixed;
    if (!l->parsed)
      continue;
    sums.marked += (l->image->header.incompatible & QCOW2_INCOMPAT_CORRUPT) != 0;
    sums.bitmaps_in_use += l->stats.bitmaps_in_use;
  }
  return sums;
}

static const char *
plural (uint64_t n)
{
  return n == 1 ? "" : "s";
}

const char *
checkreport_line (const struct check_result *r, char *text, size_t size)
{
  const struct sums sums = add_up (r);
  const struct check_layer *top = r->layers[0];
  size_t used;

  used = snprintf (text, size, "%s: check=%s: ", top->path, r->mode);
#define ADD(...)                                                        \
  (used += used < size ? snprintf (text + used, size - used, __VA_ARGS__) : 0)
  if (sums.corruptions_fixed || sums.leaks_fixed || r->repaired)
    ADD ("repaired (%" PRIu64 " corruption%s, %" PRIu64 " leaked cluster%s), now ",
         sums.corruptions_fixed, plural (sums.corruptions_fixed),
         sums.leaks_fixed, plural (sums.leaks_fixed));
  switch (r->verdict) {
  case CHECK_CLEAN:
    ADD ("clean");
    break;
  case CHECK_LEAKS:
    ADD ("%" PRIu64 " leaked cluster%s, nothing is damaged", sums.leaks,
         plural (sums.leaks));
    break;
  case CHECK_DIRTY:
    ADD ("was not closed properly: %" PRIu64 " refcounts or flags are outdated and will "
         "be repaired before the first write", sums.stale);
    break;
  case CHECK_CORRUPT:
    ADD ("CORRUPT, not served: %" PRIu64 " corruption%s, %" PRIu64
         " leaked cluster%s", sums.corruptions, plural (sums.corruptions),
         sums.leaks, plural (sums.leaks));
    break;
  case CHECK_FAILED:
    ADD ("could not be opened or completely checked, not served");
    break;
  }
  if (r->n > 1)
    ADD (", in %zu layers", r->n);
  if (top->parsed)
    ADD ("; %" PRIu64 " of %" PRIu64 " clusters allocated, %" PRIu64
         " compressed, %" PRIu64 " fragmented", top->stats.allocated,
         top->stats.total_clusters, top->stats.compressed,
         top->stats.fragmented);
  if (sums.marked)
    ADD ("; marked corrupt");
  if (sums.bitmaps_in_use)
    ADD ("; %" PRIu64 " bitmap%s not closed properly", sums.bitmaps_in_use,
         plural (sums.bitmaps_in_use));
#undef ADD
  return text;
}

void
checkreport_tell (const struct check_result *r)
{
  const struct sums sums = add_up (r);
  uint64_t told = 0, omitted = 0;
  size_t i, k, n;

  for (i = 0; i < r->n; i++) {
    const struct check_layer *l = r->layers[i];
    const struct finding *list = findings_list (l->findings, &n);

    omitted += findings_omitted (l->findings);
    for (k = 0; k < n; k++) {
      /* If there are corruptions, leaks are not reported one by one. */
      if (list[k].kind == FINDING_LEAK && sums.corruptions > 0)
        continue;
      if (told < TOLD) {
        nbdkit_error ("%s: %s", l->path, list[k].text);
        told++;
      }
      else
        omitted += list[k].times;
    }
  }
  if (omitted > 0)
    nbdkit_error ("%s: and %" PRIu64 " more", r->layers[0]->path, omitted);
}

/* --- for programs --- */

/* Writes a JSON string whose opening quotation mark is already written. */
static void
put_rest_of_string (FILE *fp, const char *s)
{
  unsigned n;

  while (*s) {
    n = utf8_length (s);
    if (n == 0) {
      fprintf (fp, "\\udc%02x", (unsigned char) *s++);
      continue;
    }
    if (*s == '"' || *s == '\\')
      fprintf (fp, "\\%c", *s);
    else if ((unsigned char) *s < 0x20 || *s == 0x7f)
      fprintf (fp, "\\u%04x", *s);
    else
      fwrite (s, 1, n, fp);
    s += n;
  }
  fputc ('"', fp);
}

static void
put_string (FILE *fp, const char *text)
{
  fputc ('"', fp);
  put_rest_of_string (fp, text);
}

static void
put_key (FILE *fp, const char *key, const char *text)
{
  fprintf (fp, "      \"%s\": ", key);
  put_string (fp, text);
  fputs (",\n", fp);
}

static void
put_number (FILE *fp, const char *key, uint64_t n)
{
  fprintf (fp, "      \"%s\": %" PRIu64 ",\n", key, n);
}

static void
put_flag (FILE *fp, const char *key, bool flag)
{
  fprintf (fp, "      \"%s\": %s,\n", key, flag ? "true" : "false");
}

static void
put_image (FILE *fp, const struct check_layer *l)
{
  static const char *const methods[] = { "none", "aes", "luks" };
  const struct header *h = &l->image->header;

  put_number (fp, "version", h->version);
  put_number (fp, "virtual-size", h->size);
  put_number (fp, "cluster-size", h->cluster_size);
  put_number (fp, "refcount-bits", 1u << h->refcount_order);
  put_key (fp, "compression-type", compress_name (h->compression_type));
  put_key (fp, "encryption", methods[h->crypt_method]);
  put_flag (fp, "extended-l2", (h->incompatible & QCOW2_INCOMPAT_EXTENDED_L2) != 0);
  put_flag (fp, "external-data-file",
            (h->incompatible & QCOW2_INCOMPAT_DATA_FILE) != 0);
  put_flag (fp, "lazy-refcounts",
            (h->compatible & QCOW2_COMPAT_LAZY_REFCOUNTS) != 0);
  put_flag (fp, "dirty", (h->incompatible & QCOW2_INCOMPAT_DIRTY) != 0);
  put_flag (fp, "marked-corrupt",
            (h->incompatible & QCOW2_INCOMPAT_CORRUPT) != 0);
  put_number (fp, "snapshots", h->nb_snapshots);
  put_number (fp, "bitmaps", h->has_bitmaps ? h->bitmaps.count : 0);
  put_number (fp, "bitmaps-in-use", l->stats.bitmaps_in_use);
  put_number (fp, "total-clusters", l->stats.total_clusters);
  put_number (fp, "allocated-clusters", l->stats.allocated);
  put_number (fp, "compressed-clusters", l->stats.compressed);
  put_number (fp, "fragmented-clusters", l->stats.fragmented);
  put_number (fp, "image-end-offset", l->stats.end);
}

static void
put_layer (FILE *fp, const struct check_layer *l)
{
  const struct finding *list;
  size_t i, n;

  fputs ("    {\n", fp);
  put_key (fp, "filename", l->path);
  put_key (fp, "format", l->raw ? "raw" : "qcow2");
  put_number (fp, "file-size", l->file_size);
  if (l->parsed)
    put_image (fp, l);
  put_number (fp, "corruptions", l->corruptions);
  put_number (fp, "leaks", l->leaks);
  put_number (fp, "stale-refcounts", l->stale);
  put_number (fp, "corruptions-fixed", l->corruptions_fixed);
  put_number (fp, "leaks-fixed", l->leaks_fixed);
  put_number (fp, "errors-omitted", findings_omitted (l->findings));
  fputs ("      \"errors\": [", fp);
  list = findings_list (l->findings, &n);
  for (i = 0; i < n; i++) {
    fprintf (fp, "%s\n        { \"kind\": \"%s\", \"offset\": %" PRIu64
             ", \"count\": %" PRIu64 ", \"message\": ", i ? "," : "",
             finding_name (list[i].kind), list[i].offset, list[i].times);
    put_string (fp, list[i].text);
    fputs (" }", fp);
  }
  fputs (n ? "\n      ]\n    }" : "]\n    }", fp);
}

static void
put_report (FILE *fp, const void *result)
{
  const struct check_result *r = result;
  const struct sums sums = add_up (r);
  const bool ok = r->verdict <= CHECK_DIRTY;
  size_t i;

  fputs (kind.begins, fp);
  put_rest_of_string (fp, r->layers[0]->path);
  fprintf (fp, ",\n  \"check\": \"%s\",\n  \"verdict\": \"%s\",\n"
           "  \"ok\": %s,\n  \"repaired\": %s,\n"
           "  \"corruptions\": %" PRIu64 ",\n  \"leaks\": %" PRIu64 ",\n"
           "  \"check-errors\": %d,\n"
           "  \"corruptions-fixed\": %" PRIu64 ",\n"
           "  \"leaks-fixed\": %" PRIu64 ",\n  \"layers\": [\n",
           r->mode, verdict_word (r->verdict),
           ok ? "true" : "false", r->repaired ? "true" : "false",
           sums.corruptions, sums.leaks, r->verdict == CHECK_FAILED,
           sums.corruptions_fixed, sums.leaks_fixed);
  for (i = 0; i < r->n; i++) {
    put_layer (fp, r->layers[i]);
    fputs (i + 1 < r->n ? ",\n" : "\n", fp);
  }
  fputs ("  ]\n}\n", fp);
}

int
checkreport_check (const char *path)
{
  return reportfile_check (&kind, path, false);
}

int
checkreport_write (const struct check_result *r, const char *path)
{
  return reportfile_write (&kind, path, true, put_report, r);
}
