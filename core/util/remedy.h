/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What can the user do about an error?
 *
 * The core knows it, but not how the user says so: with a parameter of the plugin, or an
 * option of a program.  Messages of the core name neither.  Where one helps they end with
 * a remedy, for which each front end has its own words.
 */

#ifndef QCOW2_REMEDY_H
#define QCOW2_REMEDY_H

enum remedy {
  REMEDY_AGAIN,                 /* repeat what was cut short */
  REMEDY_ALLOW_URI,             /* let images use this URI, or those below a prefix */
  REMEDY_BACKING_FILE,          /* name another backing file: of the top image */
  REMEDY_BACKING_FILE_BELOW,    /* of an image below it */
  REMEDY_BACKING_FORMAT,        /* say which format it has */
  REMEDY_BACKING_FORMAT_BELOW,
  REMEDY_DATA_FILE,             /* say where the external data file is */
  REMEDY_ERASE_LAST_KEY,        /* insist on it */
  REMEDY_MARKED_CORRUPT,        /* an image is so marked, and only read: repair it */
  REMEDY_NAME_BACKING,          /* write into the image which backing file it has */
  REMEDY_NO_LOCK,               /* use a file without locks */
  REMEDY_OVERWRITE,             /* insist on a new image where there is data */
  REMEDY_PASSPHRASE,            /* give the passphrase */
  REMEDY_PASSPHRASE_BELOW,      /* of an image below an encrypted one */
  REMEDY_REPAIR,                /* repair the image */
  REMEDY_SHRINK,                /* permit a smaller disk */
  REMEDY_VERSION_3,             /* change the version, too */
  REMEDY_WRITE_NBD,             /* write to an NBD export, which has no locks */
  NR_REMEDIES
};

/* The front end's words: a clause without a full stop. */
extern const char *remedy (enum remedy);

#endif /* QCOW2_REMEDY_H */
