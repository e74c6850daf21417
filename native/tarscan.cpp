// Headers of a tar at the speed of pread: plain members only. Everything else is left to the Python reader, which
// judges it; this file never reports an error, it stops in front of what it does not fully understand.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace nb = nanobind;

namespace {

constexpr int64_t kBlock = 512;
// One pread brings the header and, where members are small (a label before its image), the next headers too.
constexpr int64_t kWindow = 4 * kBlock;

struct Members {
  std::vector<int64_t> header_offset, payload_offset, size, name_end;
  std::string names;
};

// Octal digits with spaces before and NULs or spaces after: the same rule as tarheader._OCTAL.
bool octal(const unsigned char *field, int length, int64_t *value) {
  int i = 0;
  while (i < length && field[i] == ' ') ++i;
  const int first = i;
  int64_t sum = 0;
  for (; i < length && field[i] >= '0' && field[i] <= '7'; ++i) sum = sum * 8 + (field[i] - '0');
  if (i == first) return false;
  for (; i < length; ++i)
    if (field[i] != 0 && field[i] != ' ') return false;
  *value = sum;
  return true;
}

// True where the block is a plain file's header, whole in itself. Fills size and the name.
bool plain_member(const unsigned char *block, int64_t *size, std::string *name) {
  const unsigned char type = block[156];
  if ((type != '0' && type != 0) || block[0] == 0) return false;
  const bool posix = std::memcmp(block + 257, "ustar\0", 6) == 0;
  if (!posix && std::memcmp(block + 257, "ustar ", 6) != 0) return false;
  if (!posix && block[345] != 0) return false;
  int64_t stored;
  if (!octal(block + 148, 8, &stored) || !octal(block + 124, 12, size)) return false;
  uint32_t sum = 8 * ' ';
  for (int i = 0; i < 148; ++i) sum += block[i];
  for (int i = 156; i < kBlock; ++i) sum += block[i];
  if (stored != static_cast<int64_t>(sum)) return false;
  const char *text = reinterpret_cast<const char *>(block);
  name->clear();
  if (posix && block[345] != 0) {
    name->append(text + 345, strnlen(text + 345, 155));
    name->push_back('/');
  }
  name->append(text, strnlen(text, 100));
  return name->back() != '/';
}

ssize_t read_at(int fd, unsigned char *into, int64_t size, int64_t at) {
  ssize_t got;
  do {
    got = pread(fd, into, static_cast<size_t>(size), at);
  } while (got < 0 && errno == EINTR);
  return got;
}

int64_t scan(int fd, int64_t at, int64_t end, int64_t max_members, Members *out) {
  unsigned char window[kWindow];
  int64_t window_at = 0, window_end = 0;
  std::string name;
  for (int64_t n = 0; n < max_members && at <= end - kBlock; ++n) {
    if (at < window_at || at + kBlock > window_end) {
      const ssize_t got = read_at(fd, window, kWindow, at);
      if (got < kBlock) break;
      window_at = at;
      window_end = at + got;
    }
    int64_t size;
    if (!plain_member(window + (at - window_at), &size, &name)) break;
    // Compared without adding to `at`: a size near 2**63 must not wrap around.
    if (size > end - at - kBlock) break;
    const int64_t padded = (size + kBlock - 1) / kBlock * kBlock;
    if (padded > end - at - kBlock) break;
    out->header_offset.push_back(at);
    out->payload_offset.push_back(at + kBlock);
    out->size.push_back(size);
    out->names.append(name);
    out->name_end.push_back(static_cast<int64_t>(out->names.size()));
    at += kBlock + padded;
  }
  return at;
}

using Column = nb::ndarray<nb::numpy, int64_t, nb::ndim<1>>;

Column column(std::vector<int64_t> &&values) {
  auto *owned = new std::vector<int64_t>(std::move(values));
  nb::capsule owner(owned, [](void *p) noexcept { delete static_cast<std::vector<int64_t> *>(p); });
  return Column(owned->data(), {owned->size()}, owner);
}

nb::tuple tar_scan(int fd, int64_t start, int64_t end, int64_t max_members) {
  Members found;
  int64_t at;
  {
    nb::gil_scoped_release release;
    at = scan(fd, start, end, max_members, &found);
  }
  nb::bytes names(found.names.data(), found.names.size());
  return nb::make_tuple(at, column(std::move(found.header_offset)), column(std::move(found.payload_offset)),
                        column(std::move(found.size)), names, column(std::move(found.name_end)));
}

}  // namespace

void bind_tarscan(nb::module_ &m) {
  m.def("tar_scan", &tar_scan, nb::arg("fd"), nb::arg("start"), nb::arg("end"), nb::arg("max_members"),
        "Plain members of the tar open at fd, from byte start (a header) up to end (exclusive).\n\n"
        "Returns (next, header_offset, payload_offset, size, names, name_end): next is where the first header\n"
        "stands that was not understood (or end); the columns are int64 [n]; names are the names' bytes side by\n"
        "side, name i ends at name_end[i]. Never raises on bad data: the caller judges what stands at next.");
}
