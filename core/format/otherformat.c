/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What is a file that is not a qcow2 image?
 *
 * Only for messages.  The first mark of the table that the file has decides, so disks come
 * last: what is compressed, or a container, may begin like one.
 *
 * scripts/validate.d/formats.py knows the marks that a qcow2 file can have as well;
 * serve/other-formats.sh shows that all of them are here.
 */

#include <config.h>

#include <string.h>

#include "format/otherformat.h"

#define CONVERT ": qemu-img convert makes a qcow2 image of it"
#define UNPACK ": unpack it first"
#define RAW ": nbdkit's file plugin serves it"

/* The mark is at OFFSET. */
struct mark {
  size_t offset;
  const char *bytes;
  size_t len;
  const char *name;
};
#define MARK(offset, bytes, name) { offset, bytes, sizeof bytes - 1, name }

static const struct mark marks[] = {
  MARK (0, "QED\0", "a QED image" CONVERT),
  MARK (0, "KDMV", "a VMDK image" CONVERT),
  MARK (0, "COWD", "a VMDK image" CONVERT),
  MARK (0, "# Disk DescriptorFile", "the descriptor of a VMDK image" CONVERT),
  MARK (0, "vhdxfile", "a VHDX image" CONVERT),
  MARK (0, "conectix", "a VHD image" CONVERT),
  MARK (64, "\x7f\x10\xda\xbe", "a VDI image" CONVERT),
  MARK (0, "WithoutFreeSpace", "a Parallels image" CONVERT),
  MARK (0, "WithouFreSpacExt", "a Parallels image" CONVERT),
  MARK (0, "\x1f\x8b", "compressed with gzip" UNPACK),
  MARK (0, "\xfd" "7zXZ\0", "compressed with xz" UNPACK),
  MARK (0, "\x28\xb5\x2f\xfd", "compressed with zstd" UNPACK),
  MARK (0, "BZh", "compressed with bzip2" UNPACK),
  MARK (0, "\x04\x22\x4d\x18", "compressed with lz4" UNPACK),
  MARK (0, "PK\3\4", "a ZIP archive" UNPACK),
  MARK (0, "7z\xbc\xaf\x27\x1c", "a 7z archive" UNPACK),
  MARK (257, "ustar", "a tar archive (or OVA)" UNPACK),
  MARK (0, "%PDF-", "a PDF document"),
  MARK (0, "<!DOCTYPE", "a web page"),
  MARK (0, "<html", "a web page"),
  MARK (0, "<?xml", "an XML document"),
  MARK (0, "LUKS\xba\xbe", "a raw disk that is encrypted with LUKS" RAW),
  MARK (32769, "CD001", "an ISO 9660 image" RAW),
  MARK (32769, "BEA01", "a UDF image" RAW),
  MARK (512, "EFI PART", "a raw disk with a partition table (GPT)" RAW),
  MARK (4096, "EFI PART", "a raw disk with a partition table (GPT)" RAW),
  MARK (1080, "\x53\xef", "a raw disk with an ext filesystem" RAW),
  MARK ((64 << 10) + 64, "_BHRfS_M", "a raw disk with a Btrfs filesystem" RAW),
  MARK (0, "XFSB", "a raw disk with an XFS filesystem" RAW),
  MARK (512, "LABELONE", "a raw disk with LVM" RAW),
  MARK (4096, "\xfc\x4e\x2b\xa9", "a raw disk that is part of a RAID" RAW),
  MARK (4086, "SWAPSPACE2", "a raw disk with swap space" RAW),
  MARK (510, "\x55\xaa", "a raw disk with a boot sector or partition table" RAW),
};

const char *
otherformat_name (const void *buf, size_t len)
{
  for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++) {
    const struct mark *m = &marks[i];

    if (m->offset + m->len <= len &&
        memcmp ((const char *) buf + m->offset, m->bytes, m->len) == 0)
      return m->name;
  }
  return NULL;
}
