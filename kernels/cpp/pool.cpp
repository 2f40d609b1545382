#include "pool.hpp"

#include <chrono>
#include <climits>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace ramet {
namespace {

constexpr uint64_t CLOSED = 0xffffffff;
constexpr int SPINS = 2000;  // some 20 to 80 microseconds

inline void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

// Sleeps while `word` holds `value` (or returns early: the caller looks again).
void sleep_on(std::atomic<uint32_t>& word, uint32_t value) {
#if defined(__linux__)
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
#else
    if (word.load() == value) std::this_thread::sleep_for(std::chrono::microseconds(50));
#endif
}

void wake_all(std::atomic<uint32_t>& word) {
#if defined(__linux__)
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
#else
    (void)word;
#endif
}

}  // namespace

Pool::Pool(int threads, void (*enter)(), void (*leave)()) : enter_(enter), leave_(leave) {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { loop(i); });
}

Pool::~Pool() {
    stop_ = true;
    job_.fetch_add(1);
    wake_all(job_);
    for (auto& worker : workers_) worker.join();
}

void Pool::run(Phases& job) {
    std::lock_guard<std::mutex> lock(one_job_);
    enter_();
    const int count = job.count();
    // A straggler of the last job may still look at the phases: it sees the job's number change and leaves, but the array
    // may be replaced only when nobody is inside.
    if (count > capacity_) {
        count_ = 0;
        while (inside_.load() != 0) std::this_thread::yield();
        phases_ = std::make_unique<Phase[]>(count);
        capacity_ = count;
    }
    const uint32_t number = job_.load() + 1;
    // Close every phase under the new number before anything else of it changes, then open: a straggler that has read a
    // new count of chunks can't take a chunk under the old number.
    for (int i = 0; i < count; ++i) phases_[i].next.store((uint64_t)number << 32 | CLOSED);
    for (int i = 0; i < count; ++i) {
        Phase& p = phases_[i];
        p.chunks.store((uint32_t)job.chunks(i));
        p.done.store(0);
    }
    count_ = count;
    current_ = &job;
    for (int i = 0; i < count; ++i) phases_[i].next.store((uint64_t)number << 32);
    job_.store(number);
    if (sleeping_.load()) wake_all(job_);
    work(number, 0);
    leave_();
}

void Pool::work(uint32_t job, int thread) {
    const int count = count_.load();
    Phases* phases = current_.load();
    for (int i = 0; i < count; ++i) {
        Phase& p = phases_[i];
        const uint32_t chunks = p.chunks.load();
        uint64_t next = p.next.load(std::memory_order_acquire);
        while (true) {
            if ((uint32_t)(next >> 32) != job) return;
            const uint32_t index = (uint32_t)next;
            if (index >= chunks) break;
            if (!p.next.compare_exchange_weak(next, next + 1, std::memory_order_acq_rel)) continue;
            phases->chunk(i, (int)index, thread);
            if (p.done.fetch_add(1, std::memory_order_acq_rel) + 1 == chunks) {
                phases->finish(i, thread);
                p.done.fetch_add(1);
                if (p.sleepers.load()) wake_all(p.done);
            }
            next = p.next.load(std::memory_order_acquire);
        }
        if (chunks > 0 && !wait_done(p, job)) return;
    }
}

bool Pool::wait_done(Phase& p, uint32_t job) {
    for (int spins = 0;; ++spins) {
        const uint32_t done = p.done.load(std::memory_order_acquire);
        if (done > p.chunks.load(std::memory_order_relaxed)) return true;
        if (job_.load(std::memory_order_relaxed) != job) return false;
        if (spins < SPINS) {
            relax();
            continue;
        }
        p.sleepers.fetch_add(1);
        sleep_on(p.done, done);
        p.sleepers.fetch_sub(1);
    }
}

void Pool::loop(int thread) {
    enter_();
    uint32_t seen = 0;
    while (true) {
        uint32_t job = job_.load();
        for (int spins = 0; job == seen && spins < SPINS; ++spins) {
            relax();
            job = job_.load();
        }
        if (job == seen) {
            sleeping_.fetch_add(1);
            sleep_on(job_, seen);
            sleeping_.fetch_sub(1);
            continue;
        }
        if (stop_) break;
        seen = job;
        inside_.fetch_add(1);
        if (job_.load() == job) work(job, thread);
        inside_.fetch_sub(1);
    }
    leave_();
}

}  // namespace ramet
