#include <nanobind/nanobind.h>

NB_MODULE(_native, m) { m.doc() = "The hot loops of shardmill; every function here has a plain-Python twin it is tested against."; }
