// Memory that cleans up after itself, and errors as exceptions.
//
//     c++ -std=c++17 raii.cpp $(pkg-config --cflags --libs tenure)
#include <cstring>
#include <iostream>
#include <tenure.hpp>

int main()
{
    try {
        tenure::mapping table(1 << 20, TENURE_MAP_POPULATE_WRITE);
        std::memset(table.data(), 7, table.size());

        table.mark_volatile();
        // ... not used for a while ...
        if (!table.mark_nonvolatile()) {
            std::cout << "purged, made again\n";
            std::memset(table.data(), 7, table.size());
        }

        tenure::mapping owner = std::move(table);
        if (table.data() != nullptr || owner.data()[0] != std::byte{7})
            return 1;
        owner.discard();
        if (owner.data()[0] != std::byte{0})
            return 1;

        // An invalid call throws an error that says why: here, that no mode of locking is
        // given.
        try {
            owner.lock(0);
            return 1; // it should have thrown
        } catch (const std::system_error &error) {
            if (error.code() != std::errc::invalid_argument)
                throw;
            std::cout << "as expected, lock(0) is refused: " << error.what() << '\n';
        }
    } catch (const std::system_error &error) {
        std::cerr << error.what() << '\n';
        return 1;
    }
    return 0;
}
