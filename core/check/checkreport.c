/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How are the results of a check reported, to people and to programs?
 *
 * People get one line, preceded by the first faults if there are any.  Programs get JSON,
 * with the names that qemu-img check uses where it has one.  Both have a limited size:
 * findings.c limits the number of faults that are described, in all layers together.
 *
 * Locks: none.
 */

#include <config.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/jsontext.h"
#include "util/report.h"
#include "storage/reportfile.h"
#include "format/compress.h"
#include "check/checkreport.h"

static const struct report_kind kind = {
  "check-report", { "{\n  \"filename\": \"" }
};

/* The number of faults that are reported to people. */
#define TOLD 20

static const char *
verdict_word (enum check_verdict verdict)
{
  switch (verdict) {
  case CHECK_CLEAN: return "clean";
  case CHECK_LEAKS: return "leaks";
  case CHECK_DIRTY: return "dirty";
  case CHECK_MARKED: return "marked-corrupt";
  case CHECK_INCOMPLETE: return "incomplete";
  case CHECK_FAILED: return "failed";
  case CHECK_CORRUPT: return "corrupt";
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
  const char *const not_served = r->serves ? ", not served" : "";
  size_t used;

  used = snprintf (text, size, r->serves ? "%s: check=%s: " : "%s: %s check: ", top->path,
                   r->mode);
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
    ADD ("was not closed properly: %" PRIu64 " refcounts or flags are outdated%s", sums.stale,
         r->serves ? " and will be repaired before the first write" : "");
    break;
  case CHECK_MARKED:
    ADD ("no corruption was found, %" PRIu64 " leaked cluster%s, but it is marked "
         "corrupt and only read until a repair removes the mark", sums.leaks,
         plural (sums.leaks));
    break;
  case CHECK_INCOMPLETE:
    ADD ("incomplete%s: a file of the disk is missing", not_served);
    break;
  case CHECK_CORRUPT:
    ADD (r->serves ? "CORRUPT, not served" : "CORRUPT");
    ADD (": %" PRIu64 " corruption%s, %" PRIu64 " leaked cluster%s", sums.corruptions,
         plural (sums.corruptions), sums.leaks, plural (sums.leaks));
    break;
  case CHECK_FAILED:
    ADD ("could not be opened or completely checked%s", not_served);
    break;
  }
  if (r->n > 1)
    ADD (", in %zu layers", r->n);
  if (top->parsed)
    ADD ("; %" PRIu64 " of %" PRIu64 " clusters allocated, %" PRIu64
         " compressed, %" PRIu64 " fragmented", top->stats.allocated,
         top->stats.total_clusters, top->stats.compressed,
         top->stats.fragmented);
  if (sums.marked && r->verdict != CHECK_MARKED)
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
        report_error ("%s: %s", l->path, list[k].text);
        told++;
      }
      else
        omitted += list[k].times;
    }
  }
  if (omitted > 0)
    report_error ("%s: and %" PRIu64 " more", r->layers[0]->path, omitted);
}

void
checkreport_tell_lost (const struct check_layer *l)
{
  uint64_t left = 0;
  size_t n = 0;
  const struct finding *list = l->lost ? findings_list (l->lost, &n) : NULL;

  for (size_t i = 0; i < n; i++)
    if (i < TOLD)
      report_event (EVENT_REPAIRED, l->path, "repair: %s", list[i].text);
    else
      left += list[i].times;
  if (left > 0)
    report_event (EVENT_REPAIRED, l->path, "repair: and %" PRIu64 " more", left);
}

/* --- for programs --- */

/* Adds what the header says, and what the scan counted. */
static json_t *
add_image (json_t *layer, const struct check_layer *l)
{
  static const char *const methods[] = { "none", "aes", "luks" };
  const struct header *h = &l->image->header;

  return jsontext_add (layer,
    { "version", jsontext_number (h->version) },
    { "virtual-size", jsontext_number (h->size) },
    { "cluster-size", jsontext_number (h->cluster_size) },
    { "refcount-bits", jsontext_number (1u << h->refcount_order) },
    { "compression-type", jsontext_string (compress_name (h->compression_type)) },
    { "encryption", jsontext_string (methods[h->crypt_method]) },
    { "extended-l2", json_boolean (h->incompatible & QCOW2_INCOMPAT_EXTENDED_L2) },
    { "external-data-file", json_boolean (h->incompatible & QCOW2_INCOMPAT_DATA_FILE) },
    { "lazy-refcounts", json_boolean (h->compatible & QCOW2_COMPAT_LAZY_REFCOUNTS) },
    { "dirty", json_boolean (h->incompatible & QCOW2_INCOMPAT_DIRTY) },
    { "marked-corrupt", json_boolean (h->incompatible & QCOW2_INCOMPAT_CORRUPT) },
    { "snapshots", jsontext_number (h->nb_snapshots) },
    { "bitmaps", jsontext_number (h->has_bitmaps ? h->bitmaps.count : 0) },
    { "bitmaps-in-use", jsontext_number (l->stats.bitmaps_in_use) },
    { "total-clusters", jsontext_number (l->stats.total_clusters) },
    { "allocated-clusters", jsontext_number (l->stats.allocated) },
    { "compressed-clusters", jsontext_number (l->stats.compressed) },
    { "fragmented-clusters", jsontext_number (l->stats.fragmented) },
    { "image-end-offset", jsontext_number (l->stats.end) });
}

static json_t *
list_findings (struct findings *findings)
{
  size_t n;
  const struct finding *list = findings_list (findings, &n);
  json_t *errors = json_array ();

  for (size_t i = 0; i < n; i++)
    errors = jsontext_append (errors, jsontext_object (
      { "kind", jsontext_string (finding_name (list[i].kind)) },
      { "offset", jsontext_number (list[i].offset) },
      { "count", jsontext_number (list[i].times) },
      { "message", jsontext_string (list[i].text) }));
  return errors;
}

static json_t *
describe_layer (const struct check_layer *l)
{
  json_t *layer = jsontext_object (
    { "filename", jsontext_string (l->path) },
    { "format", jsontext_string (l->raw ? "raw" : "qcow2") },
    { "file-size", jsontext_number (l->file_size) });

  if (l->parsed)
    layer = add_image (layer, l);
  if (l->lost)
    layer = jsontext_add (layer, { "lost", list_findings (l->lost) });
  return jsontext_add (layer,
    { "corruptions", jsontext_number (l->corruptions) },
    { "leaks", jsontext_number (l->leaks) },
    { "stale-refcounts", jsontext_number (l->stale) },
    { "corruptions-fixed", jsontext_number (l->corruptions_fixed) },
    { "leaks-fixed", jsontext_number (l->leaks_fixed) },
    { "errors-omitted", jsontext_number (findings_omitted (l->findings)) },
    { "errors", list_findings (l->findings) });
}

static json_t *
list_layers (const struct check_result *r)
{
  json_t *layers = json_array ();

  for (size_t i = 0; i < r->n; i++)
    layers = jsontext_append (layers, describe_layer (r->layers[i]));
  return layers;
}

/* The first member is in kind.begins. */
json_t *
checkreport_describe (const struct check_result *r)
{
  const struct sums sums = add_up (r);

  return jsontext_object (
    { "filename", jsontext_string (r->layers[0]->path) },
    { "check", jsontext_string (r->mode) },
    { "verdict", jsontext_string (verdict_word (r->verdict)) },
    { "ok", json_boolean (r->verdict <= CHECK_MARKED) },
    { "repaired", json_boolean (r->repaired) },
    { "corruptions", jsontext_number (sums.corruptions) },
    { "leaks", jsontext_number (sums.leaks) },
    { "check-errors", jsontext_number (r->verdict == CHECK_FAILED ||
                                      r->verdict == CHECK_INCOMPLETE) },
    { "corruptions-fixed", jsontext_number (sums.corruptions_fixed) },
    { "leaks-fixed", jsontext_number (sums.leaks_fixed) },
    { "layers", list_layers (r) });
}

static int
print_report (FILE *fp, const void *result)
{
  return jsontext_write (checkreport_describe (result), fp);
}

int
checkreport_check (const char *path)
{
  return reportfile_check (&kind, path, false);
}

int
checkreport_write (const struct check_result *r, const char *path)
{
  return reportfile_write (&kind, path, true, print_report, r);
}
