// Region-of-interest decoding of one JPEG, feeding the resampler row by row: by baseline.h where it can, else by
// libjpeg-turbo.
#pragma once

#include <atomic>
#include <csetjmp>
#include <cstdio>  // jpeglib.h needs it first

#include <jpeglib.h>

#include "baseline.h"
#include "image.h"
#include "jpeg_header.h"
#include "resample.h"

namespace shardmill {

// One per thread: holds libjpeg's object and every scratch buffer, so that the next image allocates little.
class JpegDecoder {
  public:
    JpegDecoder();
    ~JpegDecoder();
    JpegDecoder(const JpegDecoder &) = delete;
    JpegDecoder &operator=(const JpegDecoder &) = delete;

    // Decodes the crop of one image into `slot`. Never throws; what is in the slot after a status other than kOk is
    // not defined.
    Status decode(const uint8_t *data, size_t size, const Crop &crop, const Layout &layout, Filter filter,
                  const Limits &limits, void *slot);

    // libjpeg-turbo's entropy decoding of the whole image and nothing else, for benchmarks: what a decoder built on
    // libjpeg cannot pass for a crop that reaches the bottom of the image.
    Status entropy_decode(const uint8_t *data, size_t size);

    // What went wrong last, in libjpeg's words; empty where it said nothing.
    const char *message() const { return message_; }

    // For tests: whether usual images take our own decoder (baseline.h) or libjpeg-turbo, in all threads.
    static void use_fast_path(bool on) { fast_path_.store(on); }

  private:
    static std::atomic<bool> fast_path_;

    struct Errors : jpeg_error_mgr {
        jmp_buf home;
        Status status;
        bool strict;
        JpegDecoder *owner;
    };
    struct Progress : jpeg_progress_mgr {
        int max_scans;
    };

    static void on_error(j_common_ptr cinfo);
    static void on_message(j_common_ptr cinfo, int level);
    static void on_progress(j_common_ptr cinfo);
    static boolean on_out_of_data(j_decompress_ptr cinfo);
    static void on_skip(j_decompress_ptr cinfo, long bytes);

    bool create();
    void set_source(const uint8_t *data, size_t size);
    bool decode_baseline(const uint8_t *data, size_t size, const Crop &crop, const Layout &layout, Filter filter,
                         void *slot);
    Status read_region(const Crop &crop, const Layout &layout, Filter filter, void *slot);
    bool has_headroom(const Crop &crop, const Layout &layout);
    void take_rows(JSAMPARRAY lines, int count, int first_row, int skip_columns, int columns);

    jpeg_decompress_struct cinfo_;
    jpeg_source_mgr source_;
    Errors errors_;
    Progress progress_;
    bool created_ = false;
    char message_[JMSG_LENGTH_MAX];
    Resampler resampler_;
    BaselineDecoder baseline_;
    Buffer lines_;
};

}  // namespace shardmill
