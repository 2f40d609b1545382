// Zeroed memory in pages of its own, for what is large and read in long runs: weights and KV.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

#if defined(__linux__) || defined(__APPLE__)
#include <sys/mman.h>
#else
#include <cstdlib>
#endif

namespace ramet {

class Pages {
  public:
    explicit Pages(size_t bytes) : bytes_((bytes + LARGE - 1) / LARGE * LARGE) {
#if defined(__linux__) || defined(__APPLE__)
        whole_ = mmap(nullptr, bytes_ + LARGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (whole_ == MAP_FAILED) throw std::bad_alloc();
        data_ = (uint8_t*)(((uintptr_t)whole_ + LARGE - 1) / LARGE * LARGE);
#if defined(MADV_HUGEPAGE)
        madvise(data_, bytes_, MADV_HUGEPAGE);
#endif
#else
        whole_ = calloc(bytes_ + 64, 1);
        if (!whole_) throw std::bad_alloc();
        data_ = (uint8_t*)(((uintptr_t)whole_ + 63) / 64 * 64);
#endif
    }
    ~Pages() {
#if defined(__linux__) || defined(__APPLE__)
        munmap(whole_, bytes_ + LARGE);
#else
        free(whole_);
#endif
    }
    Pages(const Pages&) = delete;
    Pages& operator=(const Pages&) = delete;
    uint8_t* data() { return data_; }

  private:
    static constexpr size_t LARGE = 2 << 20;
    size_t bytes_;
    void* whole_;
    uint8_t* data_;
};

}  // namespace ramet
