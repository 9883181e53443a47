/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How do files of other formats begin?
 *
 * The one list of marks, for otherformat.c and for a test, which reads the lines of this
 * file (tests/serve/other-formats.sh).  So each MARK has a line of its own:
 *
 *   MARK (offset in bytes, mark, name, what a file is that has it, and what to do)
 *
 * The first mark that a file has decides, so disks come last: what is compressed, or a
 * container, may begin like one.
 */

MARK (0, "QED\0", "QED", "a QED image" CONVERT)
MARK (0, "KDMV", "VMDK", "a VMDK image" CONVERT)
MARK (0, "COWD", "VMDK", "a VMDK image" CONVERT)
MARK (0, "# Disk DescriptorFile", "VMDK", "the descriptor of a VMDK image" CONVERT)
MARK (0, "vhdxfile", "VHDX", "a VHDX image" CONVERT)
MARK (0, "conectix", "VHD", "a VHD image" CONVERT)
MARK (64, "\x7f\x10\xda\xbe", "VDI", "a VDI image" CONVERT)
MARK (0, "WithoutFreeSpace", "Parallels", "a Parallels image" CONVERT)
MARK (0, "WithouFreSpacExt", "Parallels", "a Parallels image" CONVERT)
MARK (0, "\x1f\x8b", "gzip", "compressed with gzip" UNPACK)
MARK (0, "\xfd" "7zXZ\0", "xz", "compressed with xz" UNPACK)
MARK (0, "\x28\xb5\x2f\xfd", "zstd", "compressed with zstd" UNPACK)
MARK (0, "BZh", "bzip2", "compressed with bzip2" UNPACK)
MARK (0, "\x04\x22\x4d\x18", "lz4", "compressed with lz4" UNPACK)
MARK (0, "PK\3\4", "ZIP", "a ZIP archive" UNPACK)
MARK (0, "7z\xbc\xaf\x27\x1c", "7z", "a 7z archive" UNPACK)
MARK (257, "ustar", "tar", "a tar archive (or OVA)" UNPACK)
MARK (0, "%PDF-", "PDF", "a PDF document")
MARK (0, "<!DOCTYPE", "HTML", "a web page")
MARK (0, "<html", "HTML", "a web page")
MARK (0, "<?xml", "XML", "an XML document")
MARK (0, "LUKS\xba\xbe", "LUKS", "a raw disk that is encrypted with LUKS" RAW)
MARK (32769, "CD001", "ISO 9660", "an ISO 9660 image" RAW)
MARK (34817, "CD001", "ISO 9660", "an ISO 9660 image" RAW)
MARK (32769, "BEA01", "UDF", "a UDF image" RAW)
MARK (32769, "NSR02", "UDF", "a UDF image" RAW)
MARK (32769, "NSR03", "UDF", "a UDF image" RAW)
MARK (34817, "BEA01", "UDF", "a UDF image" RAW)
MARK (34817, "NSR02", "UDF", "a UDF image" RAW)
MARK (34817, "NSR03", "UDF", "a UDF image" RAW)
MARK (512, "EFI PART", "GPT", "a raw disk with a partition table (GPT)" RAW)
MARK (4096, "EFI PART", "GPT", "a raw disk with a partition table (GPT)" RAW)
MARK (1080, "\x53\xef", "ext2, ext3 or ext4", "a raw disk with an ext filesystem" RAW)
MARK (65600, "_BHRfS_M", "Btrfs", "a raw disk with a Btrfs filesystem" RAW)
MARK (0, "XFSB", "XFS", "a raw disk with an XFS filesystem" RAW)
MARK (512, "LABELONE", "LVM", "a raw disk with LVM" RAW)
MARK (1024, "LABELONE", "LVM", "a raw disk with LVM" RAW)
MARK (1536, "LABELONE", "LVM", "a raw disk with LVM" RAW)
MARK (4096, "\xfc\x4e\x2b\xa9", "RAID", "a raw disk that is part of a RAID" RAW)
MARK (4086, "SWAPSPACE2", "Linux swap", "a raw disk with swap space" RAW)
MARK (510, "\x55\xaa", "MBR", "a raw disk with a boot sector or partition table" RAW)
