// A small pool of threads that run a list of phases together.
//
// A phase is a number of chunks, taken one by one; the next phase begins when all chunks of the last are done. A thread
// that lost its core holds up the others only by the chunk in its hands: nobody waits for it to arrive at a barrier, and
// those who find no chunk left spin briefly, then sleep.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace ramet {

class Phases {
  public:
    virtual ~Phases() = default;
    virtual int count() const = 0;
    virtual int chunks(int phase) const = 0;
    virtual void chunk(int phase, int index, int thread) = 0;
    // Run once, by whoever finished the phase's last chunk, before the next phase begins.
    virtual void finish(int phase, int thread) = 0;
};

class Pool {
  public:
    // `enter` and `leave` run in each thread that works, at its start and end.
    Pool(int threads, void (*enter)(), void (*leave)());
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int threads() const { return (int)workers_.size() + 1; }
    // Runs all phases; the caller works too. One job at a time (a second caller waits).
    void run(Phases& job);

  private:
    struct alignas(64) Phase {
        std::atomic<uint64_t> next;  // job << 32 | first chunk not taken
        std::atomic<uint32_t> done;  // chunks done, + 1 when the phase's finish is
        std::atomic<uint32_t> sleepers{0};
        std::atomic<uint32_t> chunks;
    };

    void loop(int thread);
    void work(uint32_t job, int thread);
    bool wait_done(Phase& phase, uint32_t job);

    std::vector<std::thread> workers_;
    void (*enter_)();
    void (*leave_)();
    std::mutex one_job_;
    std::atomic<Phases*> current_{nullptr};
    std::atomic<uint32_t> job_{0};      // number of the newest job; changes wake the workers
    std::atomic<uint32_t> sleeping_{0};
    std::atomic<int> inside_{0};        // workers that may be reading the phases
    std::atomic<bool> stop_{false};
    std::unique_ptr<Phase[]> phases_;
    int capacity_ = 0;
    std::atomic<int> count_{0};
};

}  // namespace ramet
