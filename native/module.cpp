#include <nanobind/nanobind.h>

namespace nb = nanobind;

void bind_decode(nb::module_ &m);
void bind_read(nb::module_ &m);
void bind_tarscan(nb::module_ &m);

NB_MODULE(_native, m) {
    m.doc() = "The hot loops of shardmill; every function here has a plain-Python twin it is tested against.";
    bind_decode(m);
    bind_read(m);
    bind_tarscan(m);
}
