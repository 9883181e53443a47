/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which parameter was meant?  See paramhint.c.
 */

#ifndef QCOW2_PARAMHINT_H
#define QCOW2_PARAMHINT_H

#define PARAMHINT_SIZE 80

/* HELP describes all parameters, each at the beginning of a line: "name=VALUE  text".
 * Both functions return "name=VALUE" in TEXT, or NULL if there is no such parameter. */

/* WORD was given without "=". */
extern const char *paramhint_word (const char *help, const char *word,
                                   char text[PARAMHINT_SIZE]);
/* KEY is not a parameter, but may be a misspelled one. */
extern const char *paramhint_nearest (const char *help, const char *key,
                                      char text[PARAMHINT_SIZE]);

#endif /* QCOW2_PARAMHINT_H */
