/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How are images validated?  See validate.c.
 */

#ifndef QCOW2_IMG_VALIDATE_H
#define QCOW2_IMG_VALIDATE_H

#include <stdbool.h>

#include <jansson.h>

#include "check/check.h"
#include "img/command.h"
#include "img/policy.h"

/* What the user wants.  Nothing of it changes while images are validated. */
struct validate_options {
  const struct arguments *arguments;
  char **names;                 /* of the images, without those of other shards */
  unsigned n;
  struct policy *policy;        /* or NULL */
  bool policy_only, untrusted;
  enum check_mode check;
  bool no_read, no_leaks, hash, fsck;
  const char *sha256;           /* in lower case, or NULL */
  json_t *sums;                 /* NULL, or an object with the checksum of each name */
  const char *backing_format, *passphrase;      /* or NULL */
  double timeout;               /* seconds; 0: none */
};

/* Does image I, in a process of its own (pool.h), and tells its entry of the report
 * (validatereport.h) step by step. */
extern void validate_image (const struct validate_options *, unsigned i);
/* The entry that it has told LAST, or a new one, after the process has ended: WHY is why
 * it ended too early, or NULL.  LATE: because a step took too long. */
extern json_t *validate_entry (const char *name, json_t *last, const char *why, bool late);

#endif /* QCOW2_IMG_VALIDATE_H */
