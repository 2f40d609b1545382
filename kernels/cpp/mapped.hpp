// A file in memory as the system caches it: read only, shared with whoever else maps it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#if defined(__linux__) || defined(__APPLE__)
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace ramet {

class MappedFile {
  public:
    // Throws std::runtime_error for a file that is not there, empty, or can't be mapped.
    explicit MappedFile(const std::string& path) {
        const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
        if (file < 0) throw std::runtime_error(path + " can't be opened");
        struct stat info{};
        fstat(file, &info);
        size_ = (size_t)info.st_size;
        // Begins where a large page may: then the system maps those of its cache as a whole, if it has any.
        reserved_ = size_ + LARGE;
        whole_ = size_ ? mmap(nullptr, reserved_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) : MAP_FAILED;
        if (whole_ != MAP_FAILED) {
            void* at = (void*)(((uintptr_t)whole_ + LARGE - 1) / LARGE * LARGE);
            data_ = (const uint8_t*)mmap(at, size_, PROT_READ, MAP_SHARED | MAP_FIXED, file, 0);
            if (data_ == MAP_FAILED) munmap(whole_, reserved_);
#if defined(MADV_HUGEPAGE)
            else madvise(at, size_, MADV_HUGEPAGE);
#endif
        }
        close(file);
        if (whole_ == MAP_FAILED || data_ == MAP_FAILED) throw std::runtime_error(path + " can't be mapped");
    }
    ~MappedFile() { munmap(whole_, reserved_); }
    MappedFile(const MappedFile&) = delete;
    MappedFile& operator=(const MappedFile&) = delete;
    const uint8_t* data() const { return data_; }
    size_t size() const { return size_; }

  private:
    static constexpr size_t LARGE = 2 << 20;
    size_t size_ = 0, reserved_ = 0;
    void* whole_ = nullptr;
    const uint8_t* data_ = nullptr;
};

}  // namespace ramet

#else

namespace ramet {

class MappedFile {
  public:
    explicit MappedFile(const std::string& path) { throw std::runtime_error(path + " can't be mapped on this system"); }
    const uint8_t* data() const { return nullptr; }
    size_t size() const { return 0; }
};

}  // namespace ramet

#endif
