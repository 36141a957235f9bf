// tenure.hpp - owners of memory for C++17 programs, over tenure.h.
//
// Header only. A function that fails throws std::system_error with the error number; no
// destructor throws.
//
// SPDX-License-Identifier: MIT OR Apache-2.0

#ifndef TENURE_HPP
#define TENURE_HPP

#include <tenure.h>

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <sys/mman.h>
#include <system_error>
#include <unistd.h>
#include <utility>

namespace tenure {

// Returns the result of a C function, or throws the error that it stands for.
inline int checked(int result, const char *what)
{
    if (result < 0)
        throw std::system_error(-result, std::generic_category(), what);
    return result;
}

// Owns private anonymous memory: the constructor maps it, and the destructor unmaps it with
// tenure_munmap(). A mapping that was moved from is empty, and its data() is nullptr.
class mapping {
public:
    mapping() noexcept = default;

    // Maps `len` bytes; `tenure_flags` are TENURE_MAP_*.
    explicit mapping(std::size_t len, unsigned tenure_flags = 0) : len_(len)
    {
        checked(tenure_mmap(&addr_, len, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0, tenure_flags),
                "tenure_mmap");
    }

    mapping(mapping &&other) noexcept
        : addr_(std::exchange(other.addr_, nullptr)), len_(std::exchange(other.len_, 0))
    {
    }

    mapping &operator=(mapping &&other) noexcept
    {
        std::swap(addr_, other.addr_);
        std::swap(len_, other.len_);
        return *this;
    }

    mapping(const mapping &) = delete;
    mapping &operator=(const mapping &) = delete;

    ~mapping()
    {
        if (addr_ != nullptr)
            tenure_munmap(addr_, whole_pages());
    }

    std::byte *data() const noexcept { return static_cast<std::byte *>(addr_); }
    // The length that was given to the constructor, in bytes.
    std::size_t size() const noexcept { return len_; }

    // Faults all pages in; `flags` are TENURE_POPULATE_*.
    void populate(unsigned flags = TENURE_POPULATE_WRITE)
    {
        checked(tenure_populate(addr_, len_, flags), "tenure_populate");
    }

    // Locks it in memory; `mode` is TENURE_LOCK_NOW or TENURE_LOCK_ONFAULT.
    void lock(unsigned mode)
    {
        checked(tenure_mlock(addr_, len_, mode), "tenure_mlock");
    }

    // Ends its locks of the given modes.
    void unlock(unsigned modes = TENURE_LOCK_NOW | TENURE_LOCK_ONFAULT)
    {
        checked(tenure_munlock(addr_, len_, modes), "tenure_munlock");
    }

    // Lets the kernel free the contents until they are written again.
    void lazy_free()
    {
        checked(tenure_lazy_free(addr_, whole_pages()), "tenure_lazy_free");
    }

    // Replaces the contents by zeros.
    void discard()
    {
        checked(tenure_discard(addr_, whole_pages()), "tenure_discard");
    }

    // Lets the kernel purge the contents; priority 0 is purged first, 3 last.
    void mark_volatile(unsigned priority = 2)
    {
        checked(tenure_mvolatile_with(addr_, whole_pages(), priority, 0),
                "tenure_mvolatile_with");
    }

    // Ends volatility; returns whether every byte is as it was. Purged pages read as zeros.
    [[nodiscard]] bool mark_nonvolatile()
    {
        return checked(tenure_mnovolatile(addr_, whole_pages(), nullptr, 0, nullptr),
                       "tenure_mnovolatile") == 0;
    }

    // Purges it now, as the kernel would under memory pressure. It stays volatile.
    void purge()
    {
        checked(tenure_purge(addr_, whole_pages()), "tenure_purge");
    }

private:
    // The length of the mapping: the kernel maps whole pages.
    std::size_t whole_pages() const noexcept
    {
        const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
        return (len_ + page - 1) / page * page;
    }

    void *addr_ = nullptr;
    std::size_t len_ = 0;
};

// A buffer of bytes, like a std::vector<std::uint8_t> of a fixed size, that may be purged
// while it is not pinned. It begins pinned, with zeros. Its bytes can be used only while it
// is pinned: data() is nullptr otherwise.
class purgeable_bytes {
public:
    using value_type = std::uint8_t;
    using iterator = std::uint8_t *;
    using const_iterator = const std::uint8_t *;

    purgeable_bytes() noexcept = default;

    explicit purgeable_bytes(std::size_t len) : memory_(len == 0 ? mapping() : mapping(len))
    {
    }

    purgeable_bytes(purgeable_bytes &&other) noexcept
        : memory_(std::move(other.memory_)), pinned_(std::exchange(other.pinned_, true))
    {
    }

    purgeable_bytes &operator=(purgeable_bytes &&other) noexcept
    {
        std::swap(memory_, other.memory_);
        std::swap(pinned_, other.pinned_);
        return *this;
    }

    std::size_t size() const noexcept { return memory_.size(); }
    bool empty() const noexcept { return size() == 0; }
    bool is_pinned() const noexcept { return pinned_; }

    std::uint8_t *data() noexcept { return bytes(); }
    const std::uint8_t *data() const noexcept { return bytes(); }
    iterator begin() noexcept { return bytes(); }
    iterator end() noexcept { return pinned_ ? bytes() + size() : nullptr; }
    const_iterator begin() const noexcept { return bytes(); }
    const_iterator end() const noexcept { return pinned_ ? bytes() + size() : nullptr; }
    std::uint8_t &operator[](std::size_t at) noexcept { return bytes()[at]; }
    const std::uint8_t &operator[](std::size_t at) const noexcept { return bytes()[at]; }

    // Keeps the bytes from now on; returns whether each is as it was. If not, the purged
    // pages read as zeros, and the caller makes the contents again.
    [[nodiscard]] bool pin()
    {
        if (pinned_)
            return true;
        const bool intact = memory_.mark_nonvolatile();
        pinned_ = true;
        return intact;
    }

    // Lets the bytes be purged; priority 0 is purged first, 3 last.
    void unpin(unsigned priority = 2)
    {
        if (!pinned_ || empty())
            return;
        memory_.mark_volatile(priority);
        pinned_ = false;
    }

    // Purges the bytes now, as the kernel would under memory pressure, unless they are
    // pinned.
    void purge()
    {
        if (!pinned_)
            memory_.purge();
    }

private:
    std::uint8_t *bytes() const noexcept
    {
        return pinned_ ? reinterpret_cast<std::uint8_t *>(memory_.data()) : nullptr;
    }

    mapping memory_;
    bool pinned_ = true;
};

// A value of a cache, which stays in memory, unchanged, as long as this lives, or nothing:
// `if (auto value = cache.get(key))`. It may outlive the cache.
class cache_value {
public:
    cache_value() noexcept = default;

    cache_value(cache_value &&other) noexcept
        : value_(std::exchange(other.value_, tenure_cache_value()))
    {
    }

    cache_value &operator=(cache_value &&other) noexcept
    {
        std::swap(value_, other.value_);
        return *this;
    }

    cache_value(const cache_value &) = delete;
    cache_value &operator=(const cache_value &) = delete;

    ~cache_value() { tenure_cache_unpin(&value_); }

    explicit operator bool() const noexcept { return value_.pin != nullptr; }

    const std::uint8_t *data() const noexcept
    {
        return static_cast<const std::uint8_t *>(value_.data);
    }
    std::size_t size() const noexcept { return value_.len; }
    const std::uint8_t *begin() const noexcept { return data(); }
    const std::uint8_t *end() const noexcept { return data() + size(); }
    const std::uint8_t &operator[](std::size_t at) const noexcept { return data()[at]; }

private:
    friend class cache;

    tenure_cache_value value_ = {};
};

// A cache of bytes by key, kept for as long as there is memory. Any number of threads may use
// it at once.
class cache {
public:
    // A limit of 0 bytes is as much as there is memory for.
    explicit cache(std::size_t max_bytes = 0)
    {
        tenure_cache_options options = {};
        options.size = sizeof(options);
        options.max_bytes = max_bytes;
        checked(tenure_cache_new(&cache_, &options), "tenure_cache_new");
    }

    cache(cache &&other) noexcept : cache_(std::exchange(other.cache_, nullptr)) {}

    cache &operator=(cache &&other) noexcept
    {
        std::swap(cache_, other.cache_);
        return *this;
    }

    cache(const cache &) = delete;
    cache &operator=(const cache &) = delete;

    ~cache() { tenure_cache_close(cache_); }

    // Pins the value of the key; an empty one if there is none.
    [[nodiscard]] cache_value get(std::string_view key) const
    {
        cache_value found;
        checked(tenure_cache_get(cache_, key.data(), key.size(), &found.value_),
                "tenure_cache_get");
        return found;
    }

    // Inserts a copy of the bytes; priority 0 is given up first, 3 last.
    void insert(std::string_view key, const void *value, std::size_t len,
                unsigned priority = 2)
    {
        checked(tenure_cache_insert(cache_, key.data(), key.size(), value, len, priority),
                "tenure_cache_insert");
    }

    // Returns whether there was a value.
    bool remove(std::string_view key)
    {
        return checked(tenure_cache_remove(cache_, key.data(), key.size()),
                       "tenure_cache_remove") == 1;
    }

    struct tenure_cache_stats stats() const
    {
        struct tenure_cache_stats now = {};
        checked(::tenure_cache_stats(cache_, &now, sizeof(now)), "tenure_cache_stats");
        return now;
    }

private:
    tenure_cache *cache_ = nullptr;
};

} // namespace tenure

#endif
