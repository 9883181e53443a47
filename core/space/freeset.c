/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which clusters are in a set, and where is a run of a given length?
 *
 * Adjacent clusters form one run; no two runs touch.  The runs are the nodes of a treap
 * (a search tree by first cluster, and a heap by random priority, which keeps it balanced
 * on average).  Each node knows the longest run in its subtree, which leads directly to
 * the lowest run that is long enough, and the shortest, which is the first to be
 * forgotten when there are too many.
 *
 * All operations take O(log runs).  Changes split the tree at a cluster number and merge
 * the parts again.
 *
 * Locks: none; the owner of the set has one.
 */

#include <config.h>

#include <stdlib.h>

#include "util/bytes.h"
#include "space/freeset.h"

struct freeset_node {
  struct freeset_node *left, *right;
  uint64_t first, n;            /* the run */
  uint64_t longest, shortest;   /* runs in this subtree */
  uint32_t priority;
};

static uint64_t
longest (const struct freeset_node *t)
{
  return t ? t->longest : 0;
}

static uint64_t
shortest (const struct freeset_node *t)
{
  return t ? t->shortest : UINT64_MAX;
}

static uint64_t
end_of (const struct freeset_node *t)
{
  return t->first + t->n;
}

static void
update (struct freeset_node *t)
{
  t->longest = max64 (t->n, max64 (longest (t->left), longest (t->right)));
  t->shortest = min64 (t->n, min64 (shortest (t->left), shortest (t->right)));
}

/* Runs that begin before KEY go to *L, the others to *R. */
static void
split (struct freeset_node *t, uint64_t key, struct freeset_node **l,
       struct freeset_node **r)
{
  if (t == NULL)
    *l = *r = NULL;
  else if (t->first < key) {
    split (t->right, key, &t->right, r);
    *l = t;
    update (t);
  }
  else {
    split (t->left, key, l, &t->left);
    *r = t;
    update (t);
  }
}

/* All of L is before all of R. */
static struct freeset_node *
merge (struct freeset_node *l, struct freeset_node *r)
{
  if (l == NULL)
    return r;
  if (r == NULL)
    return l;
  if (l->priority >= r->priority) {
    l->right = merge (l->right, r);
    update (l);
    return l;
  }
  r->left = merge (l, r->left);
  update (r);
  return r;
}

/* Takes the last run out of *T. */
static struct freeset_node *
take_last (struct freeset_node **t)
{
  struct freeset_node *last = *t, *rest;

  while (last && last->right)
    last = last->right;
  if (last) {
    split (*t, last->first, &rest, &last);
    *t = rest;
  }
  return last;
}

static struct freeset_node *
new_node (struct freeset *s)
{
  struct freeset_node *t = calloc (1, sizeof *t);

  if (t) {
    s->random = s->random * 1664525 + 1013904223;
    t->priority = s->random ^ s->random >> 16;
  }
  return t;
}

static struct freeset_node *
set_run (struct freeset_node *t, uint64_t first, uint64_t end)
{
  t->left = t->right = NULL;
  t->first = first;
  t->n = end - first;
  update (t);
  return t;
}

/* Frees the tree and subtracts its runs from the totals. */
static void
drop (struct freeset *s, struct freeset_node *t)
{
  if (t == NULL)
    return;
  drop (s, t->left);
  drop (s, t->right);
  s->clusters -= t->n;
  s->runs--;
  free (t);
}

void
freeset_clear (struct freeset *s)
{
  drop (s, s->root);
  s->root = NULL;
}

int
freeset_add (struct freeset *s, uint64_t first, uint64_t n)
{
  struct freeset_node *before, *middle, *after, *last, *t;
  uint64_t end = first + n;

  if (n == 0)
    return 0;
  t = new_node (s);
  if (t == NULL)
    return -1;

  /* Runs that touch or overlap the new one become part of it. */
  split (s->root, first, &before, &after);
  last = take_last (&before);
  if (last && end_of (last) >= first) {
    first = last->first;
    end = max64 (end, end_of (last));
    drop (s, set_run (last, last->first, end_of (last)));
  }
  else
    before = merge (before, last);
  split (after, end + 1, &middle, &after);
  last = take_last (&middle);
  if (last) {
    end = max64 (end, end_of (last));
    middle = merge (middle, last);
  }
  drop (s, middle);

  s->root = merge (merge (before, set_run (t, first, end)), after);
  s->clusters += end - first;
  s->runs++;
  return 0;
}

int
freeset_remove (struct freeset *s, uint64_t first, uint64_t n)
{
  struct freeset_node *before, *middle, *after, *last, *tail = NULL;
  const uint64_t end = first + n;
  uint64_t last_end;

  if (n == 0)
    return 0;
  split (s->root, first, &before, &after);
  split (after, end, &middle, &after);

  /* The run that begins before the range and extends into it. */
  last = take_last (&before);
  if (last) {
    last_end = end_of (last);
    if (last_end > end) {
      tail = new_node (s);
      if (tail == NULL) {
        s->root = merge (merge (before, last), merge (middle, after));
        return -1;
      }
      set_run (tail, end, last_end);
      s->runs++;
    }
    if (last_end > first) {
      s->clusters -= min64 (last_end, end) - first;
      set_run (last, last->first, first);
    }
    before = merge (before, last);
  }
  /* The run that begins in the range and extends beyond it: it keeps its node. */
  last = take_last (&middle);
  if (last) {
    last_end = end_of (last);
    if (last_end > end) {
      s->clusters -= end - last->first;
      tail = set_run (last, end, last_end);
    }
    else
      middle = merge (middle, last);
  }
  drop (s, middle);
  s->root = merge (merge (before, tail), after);
  return 0;
}

bool
freeset_find (const struct freeset *s, uint64_t n, uint64_t *first,
              uint64_t *len)
{
  const struct freeset_node *t = s->root;

  if (longest (t) < n || t == NULL)
    return false;
  for (;;) {
    if (longest (t->left) >= n)
      t = t->left;
    else if (t->n >= n)
      break;
    else
      t = t->right;
  }
  *first = t->first;
  *len = t->n;
  return true;
}

uint64_t
freeset_longest (const struct freeset *s)
{
  return longest (s->root);
}

bool
freeset_shortest (const struct freeset *s, uint64_t *first, uint64_t *len)
{
  const struct freeset_node *t = s->root;

  if (t == NULL)
    return false;
  while (t->n > t->shortest)
    t = shortest (t->left) == t->shortest ? t->left : t->right;
  *first = t->first;
  *len = t->n;
  return true;
}

bool
freeset_next (const struct freeset *s, uint64_t from, uint64_t to,
              uint64_t *first, uint64_t *len)
{
  const struct freeset_node *t = s->root, *best = NULL;

  /* Finds the first run that ends after FROM: ends are in the same order as starts. */
  while (t)
    if (end_of (t) > from) {
      best = t;
      t = t->left;
    }
    else
      t = t->right;
  if (best == NULL || best->first >= to || from >= to)
    return false;
  *first = max64 (best->first, from);
  *len = min64 (end_of (best), to) - *first;
  return true;
}
