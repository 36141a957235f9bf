// An image viewer whose decoded pictures are purgeable: the small previews of all pictures
// are in a cache, and the picture that is shown, with its neighbours, in buffers that may be
// purged while they are not on the screen.
//
//     c++ -std=c++17 viewer.cpp $(pkg-config --cflags --libs tenure)
#include <algorithm>
#include <iostream>
#include <string>
#include <tenure.hpp>
#include <vector>

namespace {

constexpr std::size_t picture_bytes = 4 << 20;
constexpr std::size_t preview_bytes = 2000;
constexpr unsigned pictures = 6;

unsigned decoded, previewed;

// Stands for a decoder.
void decode(unsigned number, std::uint8_t *pixels, std::size_t len)
{
    std::fill_n(pixels, len, static_cast<std::uint8_t>(number + 1));
}

class viewer {
public:
    // Returns a pixel of the picture.
    std::uint8_t show(unsigned number)
    {
        tenure::purgeable_bytes &picture = pictures_[number];
        const bool is_new = picture.empty();
        if (is_new)
            picture = tenure::purgeable_bytes(picture_bytes);
        if (!picture.pin() || is_new) {
            decode(number, picture.data(), picture.size());
            decoded++;
        }
        const std::uint8_t pixel = picture[picture_bytes - 1];
        picture.unpin(3);
        return pixel;
    }

    std::uint8_t preview(unsigned number)
    {
        const std::string name = "picture " + std::to_string(number);
        if (tenure::cache_value found = previews_.get(name))
            return found[preview_bytes - 1];
        std::vector<std::uint8_t> pixels(preview_bytes);
        decode(number, pixels.data(), pixels.size());
        previewed++;
        previews_.insert(name, pixels.data(), pixels.size());
        return pixels.back();
    }

    // The program is told to shrink; the kernel does so when it needs memory.
    void shrink(unsigned number) { pictures_[number].purge(); }

    const tenure::cache &previews() const { return previews_; }

private:
    std::vector<tenure::purgeable_bytes> pictures_{pictures};
    tenure::cache previews_;
};

} // namespace

int main()
{
    viewer viewer;
    for (unsigned round = 0; round < 3; round++) {
        for (unsigned number = 0; number < pictures; number++) {
            if (viewer.preview(number) != number + 1 || viewer.show(number) != number + 1)
                return 1;
        }
        if (round == 0)
            viewer.shrink(3);
    }
    std::cout << pictures << " pictures shown 3 times, decoded " << decoded << " times; "
              << previewed << " previews made, found " << viewer.previews().stats().hits
              << " times\n";
    // The kernel may have purged more.
    return decoded > pictures && previewed >= pictures ? 0 : 1;
}
