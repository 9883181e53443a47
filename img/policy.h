/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which images does a policy accept?  See policy.c.
 */

#ifndef QCOW2_IMG_POLICY_H
#define QCOW2_IMG_POLICY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "format/header.h"
#include "format/otherformat.h"

struct policy;

/* "upload", "strict", or the name of a file.  NULL: reported. */
extern struct policy *policy_load (const char *name);
extern void policy_free (struct policy *);      /* NULL is allowed */
/* All that it says, in one form: equal policies have equal texts.  The caller frees it.
 * NULL: reported. */
extern char *policy_text (const struct policy *);

/* A list of findings is an array of objects with a code, which is stable, and a message.
 * Appends one; a list that is NULL (no memory) stays NULL. */
extern void finding_add (json_t **list, const char *code, const char *fmt, ...)
  __attribute__ ((__format__ (__printf__, 3, 4)));

/* What the first cluster says.  The caller frees the header. */
#define MOST_UNKNOWN 8
struct first_cluster {
  struct qcow2_header raw;      /* zeros where the header is shorter */
  struct header h;              /* valid, or all zeros but for `fault' */
  bool valid;
  uint32_t unknown[MOST_UNKNOWN];       /* types of header extensions */
  unsigned nr_unknown;
  uint64_t unused;              /* 0, or the offset of bytes that are not zeros, and mean
                                   nothing */
  const char *formats[OTHERFORMAT_MOST];        /* others that the file has */
  unsigned nr_formats;
};
/* How many bytes of the beginning have to be known; the first POLICY_LEAST say so. */
#define POLICY_LEAST 24
extern size_t policy_needs (const void *buf, size_t len);

/* These append what they find.  First: BUF has that many bytes of the beginning, or all
 * of a shorter file, which messages call NAME. */
extern void policy_judge_begin (const struct policy *, const char *name, const void *buf,
                                size_t len, struct first_cluster *, json_t **findings);
/* The file has this LENGTH, or if it is not COMPLETE, at least that. */
extern void policy_judge_length (const struct policy *, const struct first_cluster *,
                                 uint64_t length, bool complete, json_t **findings);
/* It ends with these bytes: OTHERFORMAT_END of them, or all. */
extern void policy_judge_end (const struct policy *, const void *buf, size_t len,
                              json_t **findings);

#endif /* QCOW2_IMG_POLICY_H */
