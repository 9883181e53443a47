/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A formatted text in memory of its own.
 *
 * In place of asprintf: that of glibc before 2.37 writes the final zero behind a text of
 * 100 bytes, if there is no memory to make it larger.
 *
 * NULL: ENOMEM, not reported (messages are made with this).  The caller frees the result.
 */

#ifndef QCOW2_TEXT_H
#define QCOW2_TEXT_H

#include <stdarg.h>

extern char *text_new (const char *fmt, ...)
  __attribute__ ((malloc, format (printf, 1, 2)));
extern char *text_new_list (const char *fmt, va_list args)
  __attribute__ ((malloc, format (printf, 1, 0)));

#endif /* QCOW2_TEXT_H */
