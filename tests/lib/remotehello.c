/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How do an NBD server and its client agree on an export?
 *
 * The fixed newstyle handshake, with the options that libnbd and QEMU use (specification:
 * doc/proto.md of the NBD project).
 */

#include <config.h>

#include <string.h>

#include "lib/remoteserver-impl.h"

enum {
  OPT_EXPORT_NAME = 1, OPT_ABORT = 2, OPT_GO = 7, OPT_STRUCTURED_REPLY = 8,
  OPT_SET_META_CONTEXT = 10,
};
enum {
  REP_ACK = 1, REP_INFO = 3, REP_META_CONTEXT = 4,
  REP_ERR_UNSUP = 0x80000001, REP_ERR_INVALID = 0x80000003, REP_ERR_UNKNOWN = 0x80000006,
};
enum {
  FLAG_HAS_FLAGS = 1, FLAG_FLUSH = 4, FLAG_FUA = 8, FLAG_TRIM = 32, FLAG_ZERO = 64,
  FLAG_MULTI_CONN = 256, FLAG_CACHE = 1024, FLAG_FAST_ZERO = 2048,
};

#define CONTEXT "base:allocation"

#define OPTION_MAGIC "IHAVEOPT"

struct option {
  uint32_t type, len;
  char data[4096 + 1];          /* ends with 0 */
};

static bool
reply (struct remoteclient *c, const struct option *o, uint32_t type, const void *data,
       uint32_t len)
{
  const struct { struct be64 magic; struct be32 option, type, len; }
    __attribute__ ((packed)) header = {
    put64 (UINT64_C (0x3e889045565a9)), put32 (o->type), put32 (type), put32 (len),
  };

  return remoteclient_send (c, &header, sizeof header) &&
         remoteclient_send (c, data, len);
}

static uint16_t
flags_of (const struct remotemanners *m)
{
  return FLAG_HAS_FLAGS | FLAG_FLUSH | FLAG_TRIM | (m->no_fua ? 0 : FLAG_FUA) |
    (m->no_zero ? 0 : FLAG_ZERO) |
    (m->no_zero || m->fast == REMOTE_NOT_FAST ? 0 : FLAG_FAST_ZERO) |
    (m->no_cache ? 0 : FLAG_CACHE) |
    (m->multi_conn ? FLAG_MULTI_CONN : 0);
}

/* A string with its length before it.  NULL: it does not fit; otherwise the rest. */
static char *
take_string (char *p, char *end, char *string, size_t size)
{
  struct be32 len;

  if (p == NULL || end - p < (ptrdiff_t) sizeof len)
    return NULL;
  memcpy (&len, p, sizeof len);
  p += sizeof len;
  if (get32 (len) > (size_t) (end - p) || get32 (len) >= size)
    return NULL;
  memcpy (string, p, get32 (len));
  string[get32 (len)] = '\0';
  return p + get32 (len);
}

static bool
go (struct remoteclient *c, struct option *o, bool *agreed)
{
  struct { struct be16 what; struct be64 size; struct be16 flags; }
    __attribute__ ((packed)) export;
  struct { struct be16 what; struct be32 minimum, preferred, maximum; }
    __attribute__ ((packed)) blocks;
  char name[256];

  if (take_string (o->data, o->data + o->len, name, sizeof name) == NULL)
    return reply (c, o, REP_ERR_INVALID, NULL, 0);
  if (!remoteclient_open (c, name))
    return reply (c, o, REP_ERR_UNKNOWN, NULL, 0);
  export.what = put16 (0);
  export.size = put64 (remoteclient_size (c));
  export.flags = put16 (flags_of (&c->manners));
  blocks.what = put16 (3);
  blocks.minimum = put32 (c->manners.minimum);
  blocks.preferred = put32 (4096);
  blocks.maximum = put32 (c->manners.maximum);
  *agreed = true;
  return reply (c, o, REP_INFO, &export, sizeof export) &&
    reply (c, o, REP_INFO, &blocks, sizeof blocks) && reply (c, o, REP_ACK, NULL, 0);
}

static bool
set_context (struct remoteclient *c, struct option *o)
{
  const struct { struct be32 id; char name[sizeof CONTEXT]; }
    __attribute__ ((packed)) context = {
    put32 (REMOTE_CONTEXT_ID), CONTEXT
  };
  char *end = o->data + o->len, name[256];
  char *p = take_string (o->data, end, name, sizeof name);

  c->status = false;
  for (p = p ? p + 4 : NULL; p && p < end && !c->status; ) {
    p = take_string (p, end, name, sizeof name);
    c->status = p && strcmp (name, CONTEXT) == 0;
  }
  if (c->status && !reply (c, o, REP_META_CONTEXT, &context, sizeof context - 1))
    return false;
  return reply (c, o, REP_ACK, NULL, 0);
}

/* *AGREED: what follows are requests. */
static bool
one_option (struct remoteclient *c, bool *agreed)
{
  struct { char magic[8]; struct be32 type, len; } header;
  struct option o;

  if (!remoteclient_receive (c, &header, sizeof header) ||
      memcmp (header.magic, OPTION_MAGIC, 8) != 0 || get32 (header.len) > 4096)
    return false;
  o.type = get32 (header.type);
  o.len = get32 (header.len);
  if (!remoteclient_receive (c, o.data, o.len))
    return false;
  o.data[o.len] = '\0';
  switch (o.type) {
  case OPT_EXPORT_NAME:         /* has no way to say no; nobody needs it */
    return false;
  case OPT_ABORT:
    reply (c, &o, REP_ACK, NULL, 0);
    return false;
  case OPT_GO:
    return go (c, &o, agreed);
  case OPT_STRUCTURED_REPLY:
    if (!c->manners.status)
      break;
    c->structured = true;
    return reply (c, &o, REP_ACK, NULL, 0);
  case OPT_SET_META_CONTEXT:
    if (!c->structured)
      break;
    return set_context (c, &o);
  }
  return reply (c, &o, REP_ERR_UNSUP, NULL, 0);
}

bool
remoteclient_hello (struct remoteclient *c)
{
  struct { char magic[16]; struct be16 flags; } __attribute__ ((packed)) hello;
  struct be32 flags;
  bool agreed = false;

  memcpy (hello.magic, "NBDMAGICIHAVEOPT", 16);
  hello.flags = put16 (1 | 2);  /* fixed newstyle; without zeros */
  if (!remoteclient_send (c, &hello, sizeof hello) ||
      !remoteclient_receive (c, &flags, sizeof flags))
    return false;
  while (!agreed)
    if (!one_option (c, &agreed))
      return false;
  return true;
}
